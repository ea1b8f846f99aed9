package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/lockgate/lockgate/internal/db"
)

// DefaultTable is the table of locks where none is named.
const DefaultTable = "lockgate_locks"

// DDL returns the statement that creates the table of locks, with the name
// table or, if that is empty, [DefaultTable]. It does nothing to a table that
// exists.
//
// The columns that end in _ns are nanoseconds of the boot clock and mean
// something only together with boot; those that end in _at are for people.
func DDL(table string) string {
	return fmt.Sprintf(`CREATE TABLE IF NOT EXISTS %s (
  name        TEXT    NOT NULL PRIMARY KEY,
  owner       TEXT    NOT NULL,
  run         TEXT    NOT NULL,
  token       INTEGER NOT NULL,
  boot        TEXT    NOT NULL,
  acquired_ns INTEGER NOT NULL,
  renewed_ns  INTEGER NOT NULL,
  expires_ns  INTEGER NOT NULL,
  released    INTEGER NOT NULL,
  revoked     INTEGER NOT NULL,
  acquired_at TEXT    NOT NULL,
  renewed_at  TEXT    NOT NULL,
  expires_at  TEXT    NOT NULL
) WITHOUT ROWID`, quote(tableOr(table)))
}

func tableOr(table string) string {
	if table == "" {
		return DefaultTable
	}
	return table
}

// quote returns name as an identifier in SQL.
func quote(name string) string {
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
}

// columns are those of [DDL].
func columns() []string {
	return []string{
		"name", "owner", "run", "token", "boot", "acquired_ns", "renewed_ns", "expires_ns",
		"released", "revoked", "acquired_at", "renewed_at", "expires_at",
	}
}

// checkTable returns nil when the table is there and is one of ours. An error
// wraps db.ErrNoTable or db.ErrRefused, or is SQLite's.
func checkTable(ctx context.Context, conn *sql.Conn, path, table string) error {
	rows, err := conn.QueryContext(ctx, "SELECT lower(name), pk FROM pragma_table_info(?)", table)
	if err != nil {
		return fmt.Errorf("look for table %q: %w", table, err)
	}
	defer rows.Close()
	key := make(map[string]int)
	for rows.Next() {
		var name string
		var pk int
		if err := rows.Scan(&name, &pk); err != nil {
			return fmt.Errorf("look for table %q: %w", table, err)
		}
		key[name] = pk
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("look for table %q: %w", table, err)
	}
	if len(key) == 0 {
		return fmt.Errorf("%s has no table %q: %w; this creates it: %s", path, table, db.ErrNoTable, DDL(table))
	}
	keys := 0
	for _, column := range columns() {
		pk, ok := key[column]
		if !ok {
			return fmt.Errorf("table %q of %s is not a table of locks, it has no column %q: %w", table, path, column, db.ErrRefused)
		}
		if pk > 0 {
			keys++
		}
	}
	// Without a unique name two owners could have a row each.
	if key["name"] == 0 || keys != 1 {
		return fmt.Errorf("table %q of %s is not a table of locks, its primary key is not the column \"name\": %w", table, path, db.ErrRefused)
	}
	return nil
}
