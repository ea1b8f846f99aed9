package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/lockgate/lockgate/internal/testserver"
)

// built are the programs under test, built once, and the folder for what they
// leave when they are killed.
var built struct{ lockgate, planted, wall, puppet, runtime string }

func TestMain(m *testing.M) { os.Exit(runAll(m)) }

func runAll(m *testing.M) int {
	dir, err := os.MkdirTemp("", "lockgate-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := os.Chmod(dir, 0o755); err != nil { // some tests start lockgate as another user
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	built.lockgate = filepath.Join(dir, "lockgate")
	built.planted = filepath.Join(dir, "lockgate-planted")
	built.wall = filepath.Join(dir, "lockgate-wall")
	built.puppet = filepath.Join(dir, "puppet")
	built.runtime = filepath.Join(dir, "runtime")
	if err := os.Mkdir(built.runtime, 0o700); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for _, args := range [][]string{
		{"-o", built.lockgate, "-ldflags", "-s -w", "../cmd/lockgate"},
		{"-o", built.planted, "-tags", "lockgate_planted_margin", "../cmd/lockgate"},
		{"-o", built.wall, "-tags", "lockgate_test_wall", "../cmd/lockgate"},
		{"-o", built.puppet, "./puppet"},
	} {
		build := exec.Command("go", append([]string{"build", "-trimpath"}, args...)...)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n%s", build, err, out)
			return 1
		}
	}
	code := m.Run()
	if shared.server != nil {
		if err := shared.server.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}

// shared is the MariaDB server of all tests that do not hurt it.
var shared struct {
	once   sync.Once
	server *testserver.MariaDB
	err    error
}

func mariadb(t *testing.T) *testserver.MariaDB {
	t.Helper()
	shared.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		shared.server, shared.err = testserver.StartMariaDB(ctx, testserver.Options{})
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.server
}
