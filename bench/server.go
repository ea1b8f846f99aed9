package bench

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/lockgate/lockgate/internal/testserver"
)

// Account is an ordinary user of a server, with a database of its own.
type Account struct {
	User, Password, Database string
}

// NewAccount makes an account. It lives as long as the server.
func NewAccount(ctx context.Context, server *testserver.MariaDB, name string) (Account, error) {
	a := Account{User: name, Password: "s3cret", Database: name}
	for _, statement := range []string{
		"CREATE DATABASE " + a.Database,
		"CREATE USER " + testserver.Quote(a.User) + "@'%' IDENTIFIED BY " + testserver.Quote(a.Password),
		"GRANT ALL ON " + a.Database + ".* TO " + testserver.Quote(a.User) + "@'%'",
	} {
		if _, err := server.Admin().ExecContext(ctx, statement); err != nil {
			return a, fmt.Errorf("make an account: %w", err)
		}
	}
	return a, nil
}

// URL is the account's database as lockgate wants to hear it.
func (a Account) URL(address string) string {
	return "mysql://" + a.User + ":" + a.Password + "@" + address + "/" + a.Database
}

// DSN is the same for the Go driver.
func (a Account) DSN(address string) string {
	return a.User + ":" + a.Password + "@tcp(" + address + ")/" + a.Database
}

// Environ is our environment without settings of lockgate's, and with these,
// which are written without their prefix.
func Environ(settings ...string) []string {
	const prefix = "LOCKGATE_"
	var env []string
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, prefix) {
			env = append(env, entry)
		}
	}
	for _, setting := range settings {
		env = append(env, prefix+setting)
	}
	return env
}
