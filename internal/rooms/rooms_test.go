package rooms

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

// A room is one folder's entry in the plan. Patterns are import paths as the go
// command writes them ("os/..." is os and all below it); rooms go by their
// folder. The value of each entry is the reason for it.
type room struct {
	// may lists the rooms and modules that the room sees. It sees no others.
	may map[string]string

	// mayNot lists what the room must not use of the standard library, which
	// is open to it otherwise.
	mayNot map[string]string

	// tests lists what its tests may see besides that, the test rooms and the
	// room itself.
	tests map[string]string

	// wires is true for the room that sees every other that is not for tests.
	wires bool

	// forTests is true for a room that only tests may see.
	forTests bool
}

// Reasons that stand more than once in the plan.
const (
	contract   = "the contract that it fulfils or builds on"
	driverLogs = "a driver returns its errors; the gate decides what they mean and logs them"
	systemCall = "system calls that the standard library does not have"
	measures   = "samples, ratios and tables"
	ownLibrary = "the one library that this driver is for"
	wall       = "times that people read; nothing is decided by them"
)

// plan is the table of rooms. Dependencies point one way: cmd, then the two
// sides of the gate directory (holder, wrap), then what they are made of.
func plan() map[string]room {
	return map[string]room{
		"cmd/lockgate": {
			wires: true,
			may: map[string]string{
				"golang.org/x/sys/...":  systemCall,
				"golang.org/x/term/...": "whether a person sits in front of it",
			},
		},
		"internal/config": {
			may: map[string]string{
				"github.com/caarlos0/env/v11": "reads the environment into a struct",
			},
			mayNot: map[string]string{
				"database/sql/...": "settings are checked, not tried out",
				"net/http/...":     "settings are checked, not tried out",
				"os/exec":          "settings are checked, not tried out",
			},
		},
		"internal/logging": {
			may: map[string]string{
				"github.com/lmittmann/tint": "readable logs on a terminal",
			},
		},
		"internal/gate": {
			may: map[string]string{
				"internal/db":        "when to try and how long to trust are decided over the contract, whatever the store",
				"internal/wallclock": wall,
			},
			mayNot: map[string]string{
				"database/sql/...": "policy knows no SQL",
				"net/...":          "policy knows no network",
				"os/...":           "policy knows no files, processes or signals; clocks are handed to it",
				"syscall":          "policy knows no system",
			},
		},
		"internal/gatedir": {
			may: map[string]string{
				"golang.org/x/sys/...": systemCall,
			},
			mayNot: map[string]string{
				"database/sql/...": "files and locks only",
				"net/...":          "files and locks only",
				"os/exec":          "files and locks only",
			},
		},
		"internal/holder": {
			may: map[string]string{
				"internal/db":        "a lease and an error are told as a verdict",
				"internal/gate":      "it runs the gate for each request",
				"internal/gatedir":   "requests come in and verdicts go out here",
				"internal/wallclock": wall,
			},
			mayNot: map[string]string{
				"database/sql/...": "that is a driver's",
				"os/exec":          "main is started by the other side",
			},
		},
		"internal/wrap": {
			may: map[string]string{
				"internal/bootclock": "deadlines are on the clock that suspend does not stop",
				"internal/child":     "CMD and all its descendants",
				"internal/gatedir":   "a request goes out and verdicts come in here",
			},
			mayNot: map[string]string{
				"database/sql/...": "this side never talks to a store",
				"net/...":          "this side never talks to a store",
				"os/exec":          "processes are internal/child's",
			},
		},
		"internal/child": {
			may: map[string]string{
				"golang.org/x/sys/...": systemCall,
			},
			mayNot: map[string]string{
				"net/...": "processes only",
			},
		},
		"internal/wallclock": {
			mayNot: map[string]string{
				"net/...": "a clock only",
				"os/exec": "a clock only",
			},
		},
		"internal/bootclock": {
			may: map[string]string{
				"golang.org/x/sys/...": systemCall,
			},
			mayNot: map[string]string{
				"net/...": "a clock only",
				"os/exec": "a clock only",
			},
		},
		"internal/db": {
			mayNot: map[string]string{
				"database/sql/...": "the contract holds for stores without SQL",
				"log/...":          "a contract has nothing to log",
				"net/...":          "the contract holds for stores without a network",
				"os/...":           "the contract holds for stores without files",
			},
		},
		"internal/db/memory": {
			// A lock in one process's memory excludes nobody else.
			forTests: true,
			may:      map[string]string{"internal/db": contract},
			mayNot:   map[string]string{"log/...": driverLogs},
		},
		"internal/db/mysql": {
			may: map[string]string{
				"internal/db":                    contract,
				"github.com/go-sql-driver/mysql": ownLibrary,
			},
			mayNot: map[string]string{"log/...": driverLogs},
		},
		"internal/db/sqlite": {
			may: map[string]string{
				"internal/wallclock":     wall,
				"internal/db":            contract,
				"golang.org/x/sys/...":   systemCall,
				"modernc.org/sqlite/...": ownLibrary,
			},
			mayNot: map[string]string{"log/...": driverLogs},
		},
		"internal/db/dbtest": {
			forTests: true,
			may:      map[string]string{"internal/db": contract},
			mayNot: map[string]string{
				"database/sql/...": "the suite holds for stores without SQL",
			},
		},
		"internal/testserver": {
			forTests: true,
			may: map[string]string{
				"github.com/go-sql-driver/mysql": "asks the server whether it is ready",
				"golang.org/x/sys/...":           systemCall,
			},
		},
		"internal/rooms": {},
		"bench": {
			forTests: true,
			may: map[string]string{
				"internal/testserver": "accounts on a real server",
			},
		},
		"bench/budget": {
			forTests: true,
			may: map[string]string{
				"bench":               measures,
				"internal/testserver": "a real server, and a forwarder that counts",
			},
		},
		"bench/compare": {
			forTests: true,
			may: map[string]string{
				"bench":               measures,
				"internal/testserver": "a real server",
			},
		},
		"bench/connect": {
			// It stands for a stranger's program, so it knows nothing of ours.
			forTests: true,
			may: map[string]string{
				"github.com/go-sql-driver/mysql": "the driver that it shares with lockgate",
			},
		},
		"bench/holders": {
			forTests: true,
			may: map[string]string{
				"bench":               measures,
				"internal/bootclock":  "the clock that a gate is given",
				"internal/db":         "a store that is timed",
				"internal/db/mysql":   "the store of ten thousand holders",
				"internal/gate":       "the policy by which they renew",
				"internal/testserver": "a real server",
			},
		},
		"e2e/puppet": {
			// It stands for a stranger's job, so it knows nothing of ours.
			forTests: true,
			may: map[string]string{
				"golang.org/x/sys/...": systemCall,
			},
		},
		"e2e": {
			forTests: true,
			tests: map[string]string{
				"github.com/go-sql-driver/mysql": "looks at the server's side of a promise",
				"golang.org/x/sys/...":           systemCall,
				"modernc.org/sqlite":             "makes databases of somebody else",
			},
		},
	}
}

// nowhere lists what no room may use outside its tests. Rooms for tests may use
// the testing packages.
func nowhere() map[string]string {
	return map[string]string{
		"C":           "the binary is static and built without cgo",
		"log":         "log/slog, with a logger that was handed down",
		"plugin":      "the binary is static",
		"testing/...": "test code does not belong into the binary",
	}
}

// exits lists the calls that end the process; all but the main file return an
// error instead, so that what was taken is given back. Test files and programs
// for tests are free to.
func exits() map[string][]string {
	return map[string][]string{
		"os":                    {"Exit"},
		"syscall":               {"Exit"},
		"golang.org/x/sys/unix": {"Exit"},
		"log":                   {"Fatal", "Fatalf", "Fatalln"},
	}
}

const (
	mainFile        = "cmd/lockgate/main.go"
	mainFileLines   = 40 // the file stays below this
	minCommentWords = 8  // fewer cannot say what a room is for
)

// A file is what the rules look at in one Go file.
type file struct {
	path    string   // below the module's root
	pkg     string   // the name in its package clause
	comment string   // its package comment
	imports []string // module-local ones as folders
	exits   []string // calls that end the process, as written
	lines   int
}

func (f file) room() string { return path.Dir(f.path) }
func (f file) isTest() bool { return strings.HasSuffix(f.path, "_test.go") }

// survey reads every Go file of the module, whatever its platform and build
// tags. It reads the files itself rather than ask the go command, which sees
// one platform at a time, and so that the test cache knows what was read.
func survey(tree fs.FS) ([]file, error) {
	gomod, err := fs.ReadFile(tree, "go.mod")
	if err != nil {
		return nil, err
	}
	_, module, _ := strings.Cut("\n"+string(gomod), "\nmodule ")
	module, _, _ = strings.Cut(module, "\n")
	module = strings.TrimSpace(module)

	var files []file
	err = fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != ".":
			if base := entry.Name(); base == "testdata" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
				return fs.SkipDir
			}
			if _, err := fs.Stat(tree, path.Join(name, "go.mod")); err == nil {
				return fs.SkipDir // another module
			}
			return nil
		case path.Ext(name) != ".go":
			return nil
		}
		source, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		f, err := look(name, source, module)
		files = append(files, f)
		return err
	})
	return files, err
}

// look reads one file.
func look(name string, source []byte, module string) (file, error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), name, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return file{}, fmt.Errorf("read %s: %w", name, err)
	}
	f := file{
		path:    name,
		pkg:     parsed.Name.Name,
		comment: parsed.Doc.Text(),
		lines:   strings.Count(string(source), "\n"),
	}
	pathOf := map[string]string{} // import paths by the name they go by here
	for _, spec := range parsed.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return file{}, fmt.Errorf("read the imports of %s: %w", name, err)
		}
		local := path.Base(imported)
		if spec.Name != nil {
			local = spec.Name.Name
		}
		pathOf[local] = imported
		f.imports = append(f.imports, strings.TrimPrefix(imported, module+"/"))
	}
	ast.Inspect(parsed, func(node ast.Node) bool {
		selector, ok := node.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if left, ok := selector.X.(*ast.Ident); ok && slices.Contains(exits()[pathOf[left.Name]], selector.Sel.Name) {
			f.exits = append(f.exits, left.Name+"."+selector.Sel.Name)
		}
		return true
	})
	return f, nil
}

// matches reports whether an import path is one that the pattern means.
func matches(pattern, imported string) bool {
	below, all := strings.CutSuffix(pattern, "/...")
	return imported == below || all && strings.HasPrefix(imported, below+"/")
}

// find returns the reason of the entry that means the import path.
func find(entries map[string]string, imported string) (reason string, found bool) {
	for pattern, reason := range entries {
		if matches(pattern, imported) {
			return reason, true
		}
	}
	return "", false
}

// isStandard reports whether the path is the standard library's: only its first
// element has no dot, rooms aside.
func isStandard(imported string) bool {
	first, _, _ := strings.Cut(imported, "/")
	return !strings.Contains(first, ".")
}

// violations lists, in order, where the files break the plan.
func violations(plan map[string]room, files []file) []string {
	var found []string
	report := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }

	for _, name := range slices.Sorted(maps.Keys(plan)) {
		for seen := range plan[name].may {
			if plan[seen].forTests && !plan[name].forTests {
				report("the plan lets %s see %s, which is for tests", name, seen)
			}
		}
		files := slices.DeleteFunc(slices.Clone(files), func(f file) bool { return f.room() != name })
		if len(files) == 0 {
			report("%s is in the plan but does not exist", name)
			continue
		}
		if problem := checkComment(files); problem != "" {
			report("%s: %s", name, problem)
		}
	}
	for _, f := range files {
		if _, planned := plan[f.room()]; !planned {
			report("%s: %s is not in the plan", f.path, f.room())
			continue
		}
		for _, imported := range f.imports {
			if problem := checkImport(plan, f, imported); problem != "" {
				report("%s imports %s: %s", f.path, imported, problem)
			}
		}
		if len(f.exits) > 0 && f.path != mainFile && !f.isTest() && !(plan[f.room()].forTests && f.pkg == "main") {
			report("%s calls %s: only %s ends the process", f.path, strings.Join(f.exits, ", "), mainFile)
		}
		if f.path == mainFile && f.lines >= mainFileLines {
			report("%s has %d lines, want fewer than %d: what it does belongs beside it", f.path, f.lines, mainFileLines)
		}
	}
	slices.Sort(found)
	return found
}

// checkComment says what is wrong with the package comment of a room. A room of
// tests only has it in a test file.
func checkComment(files []file) string {
	if slices.ContainsFunc(files, func(f file) bool { return !f.isTest() }) {
		files = slices.DeleteFunc(files, file.isTest)
	}
	for _, f := range files {
		if f.comment == "" {
			continue
		}
		begin := "Package " + f.pkg + " "
		if f.pkg == "main" {
			begin = "Command " + path.Base(f.room()) + " "
		}
		if !strings.HasPrefix(f.comment, begin) {
			return fmt.Sprintf("the package comment in %s does not begin with %q", path.Base(f.path), begin)
		}
		if len(strings.Fields(f.comment)) < minCommentWords {
			return fmt.Sprintf("the package comment in %s does not say what the room is for", path.Base(f.path))
		}
		return ""
	}
	return "no package comment says what the room is for"
}

// checkImport says why a file must not import something, or nothing.
func checkImport(plan map[string]room, f file, imported string) string {
	r := plan[f.room()]
	other, isRoom := plan[imported]
	_, mine := find(r.may, imported)
	if f.isTest() {
		_, forTests := find(r.tests, imported)
		ok := mine || forTests || other.forTests || imported == f.room() || r.wires && isRoom || !isRoom && isStandard(imported)
		if !ok {
			return "not in the plan for this room's tests"
		}
		return ""
	}
	if reason, banned := find(nowhere(), imported); banned && !(r.forTests && matches("testing/...", imported)) {
		return reason
	}
	if reason, banned := find(r.mayNot, imported); banned {
		return reason
	}
	switch {
	case mine:
	case r.wires && isRoom && !other.forTests:
	case isRoom, !isStandard(imported):
		return "not in the plan for this room"
	}
	return ""
}

func TestEveryRoomKeepsToThePlan(t *testing.T) {
	files, err := survey(os.DirFS("../.."))
	if err != nil {
		t.Fatalf("survey the module: %v", err)
	}
	for _, violation := range violations(plan(), files) {
		t.Error(violation)
	}
}

// The rules are tried on a small house, sound but for what each case adds.
func TestAViolationOfThePlanIsSeen(t *testing.T) {
	plan := func() map[string]room {
		return map[string]room{
			"cmd/lockgate": {wires: true},
			"internal/gate": {
				may:    map[string]string{"internal/db": "the contract"},
				mayNot: map[string]string{"os/...": "no processes", "log/...": "no logs"},
			},
			"internal/db":      {may: map[string]string{"example.org/sql/...": "a library"}},
			"internal/harness": {forTests: true},
			"e2e":              {},
		}
	}
	sound := map[string]string{
		"go.mod":                           "module example.org/house\n\ngo 1.26\n",
		mainFile:                           "package main\n\nimport (\n\t\"os\"\n\n\t\"example.org/house/internal/gate\"\n)\n\nfunc main() { os.Exit(gate.Run()) }\n",
		"cmd/lockgate/doc.go":              "// Command lockgate stands here for the program that wires it all.\npackage main\n",
		"internal/gate/gate.go":            "// Package gate stands here for the room that decides all policy.\npackage gate\n\nimport (\n\t\"time\"\n\n\t\"example.org/house/internal/db\"\n)\n",
		"internal/gate/gate_test.go":       "package gate_test\n\nimport (\n\t\"os/exec\"\n\t\"testing\"\n\n\t\"example.org/house/internal/db\"\n\t\"example.org/house/internal/gate\"\n\t\"example.org/house/internal/harness\"\n)\n",
		"internal/db/db.go":                "// Package db stands here for the room that has a library.\npackage db\n\nimport (\n\t\"log/slog\"\n\n\t\"example.org/sql/driver\"\n)\n",
		"internal/harness/harness.go":      "// Package harness stands here for the room that only tests see.\npackage harness\n\nimport \"testing\"\n",
		"internal/harness/testdata/bad.go": "not Go at all",
		"internal/other/go.mod":            "module example.org/other\n",
		"internal/other/other.go":          "package other\n",
		"e2e/e2e_test.go":                  "// Package e2e stands here for a room that has nothing but tests.\npackage e2e\n",
	}
	tests := []struct {
		name string
		add  map[string]string     // files, by name
		edit func(map[string]room) // of the plan
		want string                // the one violation; empty for none
	}{
		{name: "a sound house has none"},
		{
			name: "a forbidden part of the standard library",
			add:  map[string]string{"internal/gate/run.go": "package gate\n\nimport \"os/exec\"\n"},
			want: "internal/gate/run.go imports os/exec: no processes",
		},
		{
			name: "a file for another platform",
			add:  map[string]string{"internal/gate/run_plan9.go": "//go:build planted\n\npackage gate\n\nimport \"log/slog\"\n"},
			want: "internal/gate/run_plan9.go imports log/slog: no logs",
		},
		{
			name: "a room that is none of its business",
			add:  map[string]string{"internal/db/up.go": "package db\n\nimport \"example.org/house/internal/gate\"\n"},
			want: "internal/db/up.go imports internal/gate: not in the plan for this room",
		},
		{
			name: "a library in a room that it is not for",
			add:  map[string]string{"internal/gate/sql.go": "package gate\n\nimport _ \"example.org/sql\"\n"},
			want: "internal/gate/sql.go imports example.org/sql: not in the plan for this room",
		},
		{
			name: "a library that only begins like the one in the plan",
			add:  map[string]string{"internal/db/sql.go": "package db\n\nimport _ \"example.org/sqlite\"\n"},
			want: "internal/db/sql.go imports example.org/sqlite: not in the plan for this room",
		},
		{
			name: "a test that sees a room beyond the plan",
			add:  map[string]string{"internal/db/up_test.go": "package db\n\nimport \"example.org/house/internal/gate\"\n"},
			want: "internal/db/up_test.go imports internal/gate: not in the plan for this room's tests",
		},
		{
			name: "a test that brings its own library",
			add:  map[string]string{"internal/db/x_test.go": "package db\n\nimport \"example.org/assert\"\n"},
			want: "internal/db/x_test.go imports example.org/assert: not in the plan for this room's tests",
		},
		{
			name: "a test room in the program",
			add:  map[string]string{"cmd/lockgate/x.go": "package main\n\nimport \"example.org/house/internal/harness\"\n"},
			want: "cmd/lockgate/x.go imports internal/harness: not in the plan for this room",
		},
		{
			name: "a plan that gives a test room away",
			edit: func(plan map[string]room) { plan["internal/db"].may["internal/harness"] = "why not" },
			want: "the plan lets internal/db see internal/harness, which is for tests",
		},
		{
			name: "a plan that gives a test room to another",
			add:  map[string]string{"e2e/job/job.go": "// Package job stands here for a room that only tests see, too.\npackage job\n\nimport \"example.org/house/internal/harness\"\n"},
			edit: func(plan map[string]room) {
				plan["e2e/job"] = room{forTests: true, may: map[string]string{"internal/harness": "why not"}}
			},
		},
		{
			name: "the testing package in the program",
			add:  map[string]string{"internal/db/x.go": "package db\n\nimport \"testing/fstest\"\n"},
			want: "internal/db/x.go imports testing/fstest: test code does not belong into the binary",
		},
		{
			name: "the global logger",
			add:  map[string]string{"internal/db/x.go": "package db\n\nimport \"log\"\n"},
			want: "internal/db/x.go imports log: log/slog, with a logger that was handed down",
		},
		{
			name: "a room that is not in the plan",
			add:  map[string]string{"internal/util/util.go": "package util\n"},
			want: "internal/util/util.go: internal/util is not in the plan",
		},
		{
			name: "a room that is only in the plan",
			edit: func(plan map[string]room) { plan["internal/attic"] = room{} },
			want: "internal/attic is in the plan but does not exist",
		},
		{
			name: "a room without a package comment",
			add:  map[string]string{"internal/db/db.go": "package db\n"},
			want: "internal/db: no package comment says what the room is for",
		},
		{
			name: "a package comment that only a test has",
			add: map[string]string{
				"internal/db/db.go":      "package db\n",
				"internal/db/db_test.go": "// Package db has its comment in the wrong place here.\npackage db\n",
			},
			want: "internal/db: no package comment says what the room is for",
		},
		{
			name: "a package comment that says nothing",
			add:  map[string]string{"internal/db/db.go": "// Package db is db.\npackage db\n"},
			want: "internal/db: the package comment in db.go does not say what the room is for",
		},
		{
			name: "a package comment about something else",
			add:  map[string]string{"internal/db/db.go": "// Copyright somebody, some time, with all that this usually says.\npackage db\n"},
			want: `internal/db: the package comment in db.go does not begin with "Package db "`,
		},
		{
			name: "an exit in a room, under another name",
			add:  map[string]string{"internal/db/x.go": "package db\n\nimport sys \"os\"\n\nfunc f() { sys.Exit(1) }\n"},
			want: "internal/db/x.go calls sys.Exit: only cmd/lockgate/main.go ends the process",
		},
		{
			name: "an exit beside the main file",
			add:  map[string]string{"cmd/lockgate/x.go": "package main\n\nimport \"os\"\n\nvar exit = os.Exit\n"},
			want: "cmd/lockgate/x.go calls os.Exit: only cmd/lockgate/main.go ends the process",
		},
		{
			name: "an exit in a room for tests that is no program",
			add:  map[string]string{"internal/harness/x.go": "package harness\n\nimport \"os\"\n\nfunc f() { os.Exit(1) }\n"},
			want: "internal/harness/x.go calls os.Exit: only cmd/lockgate/main.go ends the process",
		},
		{
			name: "an exit in a program for tests",
			add:  map[string]string{"e2e/job/main.go": "// Command job stands here for a program that tests run.\npackage main\n\nimport \"os\"\n\nfunc main() { os.Exit(1) }\n"},
			edit: func(plan map[string]room) { plan["e2e/job"] = room{forTests: true} },
		},
		{
			name: "a method that happens to be called Exit",
			add:  map[string]string{"internal/db/x.go": "package db\n\ntype door struct{}\n\nfunc (door) Exit() {}\n\nfunc f(os door) { os.Exit() }\n"},
		},
		{
			name: "a main file that has grown",
			add:  map[string]string{mainFile: "package main\n" + strings.Repeat("\n", mainFileLines-1)},
			want: "cmd/lockgate/main.go has 40 lines, want fewer than 40: what it does belongs beside it",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			tree := fstest.MapFS{}
			for name, content := range sound {
				tree[name] = &fstest.MapFile{Data: []byte(content)}
			}
			for name, content := range test.add {
				tree[name] = &fstest.MapFile{Data: []byte(content)}
			}
			plan := plan()
			if test.edit != nil {
				test.edit(plan)
			}
			files, err := survey(tree)
			if err != nil {
				t.Fatalf("survey: %v", err)
			}
			var want []string
			if test.want != "" {
				want = []string{test.want}
			}
			if got := violations(plan, files); !slices.Equal(got, want) {
				t.Errorf("violations = %q; want %q", got, want)
			}
		})
	}
}
