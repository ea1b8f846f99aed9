package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// readme returns the README, what it calls things replaced by what they are here.
func readme(t *testing.T, replace ...string) string {
	t.Helper()
	text, err := os.ReadFile("../README.md")
	must(t, err)
	for i := 0; i < len(replace); i += 2 {
		if !strings.Contains(string(text), replace[i]) {
			t.Fatalf("the README does not speak of %s any more", replace[i])
		}
	}
	return strings.NewReplacer(replace...).Replace(string(text))
}

// command returns the one indented line of a text that has these words, without
// what is said about it.
func command(t *testing.T, text, words string) string {
	t.Helper()
	var found []string
	for line := range strings.Lines(text) {
		if command, ok := strings.CutPrefix(line, "    "); ok && strings.Contains(command, words) {
			command, _, _ = strings.Cut(command, "   #")
			found = append(found, strings.TrimSpace(command))
		}
	}
	if len(found) != 1 {
		t.Fatalf("the README has the commands %q with %q; want one", found, words)
	}
	return found[0]
}

// sqlIn returns the one SQL statement of a text that has a word.
func sqlIn(t *testing.T, text, word string) string {
	t.Helper()
	var found []string
	for _, block := range regexp.MustCompile("(?s)```sql\n(.*?);?\n```").FindAllStringSubmatch(text, -1) {
		if strings.Contains(block[1], word) {
			found = append(found, strings.TrimSuffix(block[1], ";"))
		}
	}
	if len(found) != 1 {
		t.Fatalf("the README has the statements %q with %s; want one", found, word)
	}
	return found[0]
}

// shell starts a line of the README in a folder.
func shell(t *testing.T, folder, line string) *proc {
	t.Helper()
	cmd := exec.Command("sh", "-c", line)
	cmd.Dir = folder
	return launch(t, cmd, settings{}.environ())
}

// jobFolder has a job.sh in it that appends to a file and lives until another
// exists.
func jobFolder(t *testing.T) (folder, ran, over string) {
	t.Helper()
	folder = t.TempDir()
	ran, over = filepath.Join(folder, "ran"), filepath.Join(folder, "over")
	job := fmt.Sprintf("#!/bin/sh\necho \"$LOCKGATE_LOCK $LOCKGATE_TOKEN\" >> '%s'\nwhile [ ! -e '%s' ]; do sleep 0.02; done\n", ran, over)
	must(t, os.WriteFile(filepath.Join(folder, "job.sh"), []byte(job), 0o755))
	return folder, ran, over
}

func lines(t *testing.T, path string) int {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	return strings.Count(string(text), "\n")
}

func TestTheReadmesRunOnTwoMachines(t *testing.T) {
	t.Parallel()
	url := database(t)
	schema := url[strings.LastIndexByte(url, '/')+1:]
	text := readme(t, "bin/lockgate", built.lockgate, "mysql://user:password@db.example/jobs", url, "lockgate_locks", schema+".lockgate_locks")
	run := command(t, text, built.lockgate+" run")
	folder, ran, over := jobFolder(t)

	one := shell(t, folder, run)
	awaitFile(t, ran)
	two := shell(t, folder, run)
	two.wantExit(0)
	wantSaid(t, two.said(), "skipping", `"holder":"`, `"lease_left":"`)

	// Who holds what.
	var name, owner, token, acquired, renewed, expires string
	var free int
	must(t, mariadb(t).Admin().QueryRowContext(inTime(t), sqlIn(t, text, "SELECT")).
		Scan(&name, &owner, &token, &acquired, &renewed, &expires, &free))
	if name != "nightly" || free < 60 || !strings.Contains(two.said(), owner) {
		t.Errorf("the README's SELECT says %q is held by %q for %d seconds; want nightly, the holder that was named, and more than 60", name, owner, free)
	}
	touch(t, over)
	one.wantExit(0)
	if n := lines(t, ran); n != 1 {
		t.Errorf("the job has run %d times; want once", n)
	}
	t.Logf("two contenders: one ran, the other said %s", two.said())
}

func TestTheReadmesSidecarAndExec(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := readme(t, "bin/lockgate", built.lockgate, "/tmp/gate", filepath.Join(dir, "gate"), "/tmp/locks.db", filepath.Join(dir, "locks.db"))
	export := command(t, text, "export LOCKGATE_DIR=")
	sidecarLine := command(t, text, built.lockgate+" sidecar")
	execLine := command(t, text, built.lockgate+" exec")
	folder, ran, over := jobFolder(t)

	holder := shell(t, folder, export+"; "+sidecarLine)
	main := shell(t, folder, export+"; "+execLine)
	awaitFile(t, ran)
	wantFile(t, filepath.Join(dir, "gate", "acquired"), true)
	touch(t, over)
	main.wantExit(0)
	holder.awaitOutput("lock released")
	wantFile(t, filepath.Join(dir, "gate", "acquired"), false)
	main = shell(t, folder, export+"; "+execLine) // again, with the same sidecar
	main.wantExit(0)
	if n := lines(t, ran); n != 2 {
		t.Errorf("the job has run %d times; want twice", n)
	}
}

func wantFile(t *testing.T, path string, want bool) {
	t.Helper()
	if got := exists(path); got != want {
		t.Errorf("%s exists: %v; want %v", path, got, want)
	}
}

func TestTheReadmesWaysToTakeALockFromItsHolder(t *testing.T) {
	t.Parallel()
	set := short(database(t)).with(settings{"TTL": "1m"})
	fail := set.with(settings{"ON_BUSY": "fail"})
	holder := func(more settings) (p *proc, text string) {
		at := newStage(t)
		p = startRun(t, set.with(more), at.puppet()...)
		return p, readme(t, "    lockgate ", "    "+built.lockgate+" ", "1796058717057", fmt.Sprint(tokenIn(t, at.witness())))
	}
	unlock := func(line string) {
		t.Helper()
		cmd := exec.CommandContext(inTime(t), "sh", "-c", line)
		askFrom(t, cmd, looking(set["DB_URL"]).environ(), "y\n").want(t, 0, "nightly ")
	}
	for _, which := range []string{"unlock nightly  ", "--token"} {
		p, text := holder(nil)
		unlock(command(t, text, which))
		p.wantExit(76)
		start(t, fail, "run", "--", "true").wantExit(0)
	}
	p, text := holder(calm())
	killMarked(t, p.mark)
	p.wantExit(137)
	start(t, fail, "run", "--", "true").wantExit(75)
	unlock(command(t, text, "--now"))
	start(t, fail, "run", "--", "true").wantExit(0)
}
