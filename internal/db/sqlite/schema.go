package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"strconv"
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

// columns are those of [DDL], with their kind.
func columns() []column {
	text := func(name string) column { return column{name: name, kind: "TEXT"} }
	number := func(name string) column { return column{name: name, kind: "INTEGER"} }
	return []column{
		text("name"), text("owner"), text("run"), number("token"), text("boot"),
		number("acquired_ns"), number("renewed_ns"), number("expires_ns"),
		number("released"), number("revoked"), text("acquired_at"), text("renewed_at"), text("expires_at"),
	}
}

// column is a column as SQLite describes it.
type column struct {
	name, kind string
	required   bool // a row must bring a value for it
	key        bool
}

// affinity is what SQLite makes of a declared type, by the rules of its manual
// ("Datatypes In SQLite", section 3.1). Numbers in a column of text would be
// compared as text.
func affinity(declared string) string {
	contains := func(words ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(strings.ToUpper(declared), w) })
	}
	switch {
	case contains("INT"):
		return "INTEGER"
	case contains("CHAR", "CLOB", "TEXT"):
		return "TEXT"
	case declared == "" || contains("BLOB"):
		return "BLOB"
	case contains("REAL", "FLOA", "DOUB"): //nolint:misspell // as SQLite spells it
		return "REAL"
	}
	return "NUMERIC"
}

// checkTable returns nil when the table is there and is one of ours. An error
// wraps db.ErrNoTable or db.ErrRefused, or is SQLite's.
func checkTable(ctx context.Context, conn *sql.Conn, path, table string) error {
	rows, err := conn.QueryContext(ctx, `SELECT lower(name), type, "notnull" AND dflt_value IS NULL, pk > 0 FROM pragma_table_info(?)`, table)
	if err != nil {
		return fmt.Errorf("look for table %q: %w", table, err)
	}
	defer rows.Close()
	has := make(map[string]column)
	for rows.Next() {
		var c column
		if err := rows.Scan(&c.name, &c.kind, &c.required, &c.key); err != nil {
			return fmt.Errorf("look for table %q: %w", table, err)
		}
		c.kind = affinity(c.kind)
		has[c.name] = c
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("look for table %q: %w", table, err)
	}
	if len(has) == 0 {
		return fmt.Errorf("%s has no table %q: %w; this creates it: %s", path, table, db.ErrNoTable, DDL(table))
	}
	if why := differences(has); why != "" {
		return fmt.Errorf("%s: %w", notOurs(path, table, why), db.ErrRefused)
	}
	return nil
}

// notOurs is what an operator is told who has named somebody else's table.
func notOurs(path, table, why string) string {
	return fmt.Sprintf("table %q of %s is not a lockgate table: %s; name another table in LOCKGATE_DB_TABLE", table, path, why)
}

// differences says what keeps a table with these columns from being ours; empty
// when nothing does. A column more is none as long as it may be left out.
func differences(has map[string]column) string {
	var missing, other []string
	keyed := true // by name and nothing else
	for _, want := range columns() {
		got, ok := has[want.name]
		delete(has, want.name)
		switch {
		case !ok:
			missing = append(missing, strconv.Quote(want.name))
		case got.kind != want.kind:
			other = append(other, fmt.Sprintf("column %q is of the kind %s, not %s", want.name, got.kind, want.kind))
		}
		keyed = keyed && got.key == (want.name == "name")
	}
	for _, name := range slices.Sorted(maps.Keys(has)) {
		if has[name].required {
			other = append(other, fmt.Sprintf("its column %q has no default", name))
		}
		keyed = keyed && !has[name].key
	}
	if !keyed {
		// Without a unique name two owners could have a row each.
		other = append(other, `its primary key is not the column "name"`)
	}
	if len(missing) > 0 {
		other = append([]string{"it has no column " + strings.Join(missing, ", ")}, other...)
	}
	return strings.Join(other, ", ")
}
