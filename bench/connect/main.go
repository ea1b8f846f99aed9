// Command connect connects to a MySQL or MariaDB server, sends one statement and
// ends: the least that a program with this driver can do, for comparison.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"os"

	_ "github.com/go-sql-driver/mysql"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "connect:", err)
		os.Exit(1)
	}
}

// run takes the server's DSN from the environment, as lockgate takes its URL.
func run(ctx context.Context) error {
	pool, err := sql.Open("mysql", os.Getenv("DSN"))
	if err != nil {
		return err
	}
	defer pool.Close()
	var one int
	return pool.QueryRowContext(ctx, "SELECT 1").Scan(&one)
}
