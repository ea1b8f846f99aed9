package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lockgate/lockgate/internal/db"
)

// DDL keeps the contract of [db.Migrator].
func (s *Store) DDL() string { return s.sql.create }

// Migrate keeps the contract of [db.Migrator]. It needs the right CREATE only
// when the table is missing.
func (s *Store) Migrate(ctx context.Context) (created bool, err error) {
	err = s.call(ctx, func(ctx context.Context) error {
		found, err := s.checkTable(ctx)
		if found || err != nil {
			return err
		}
		_, err = s.exec(ctx, giveBack, s.sql.createNew)
		switch {
		case isNumber(err, errTableExists): // another was faster, or it is hidden from us
			if found, err = s.checkTable(ctx); err == nil && !found {
				err = fmt.Errorf("%w: table %s exists, and we have no right to it", db.ErrRefused, s.table)
			}
			return err
		case errors.Is(err, db.ErrRefused):
			return s.mayNotCreate(err)
		}
		created = err == nil
		return err
	})
	if err != nil {
		return false, fmt.Errorf("migrate: %w", err)
	}
	return created, nil
}

// column is a column as the server's dictionary shows it.
type column struct {
	name, kind, collation string
	size                  int64 // in characters, or digits of a second's fraction
	null, key             bool
	filled                bool // the server has a value for it when nobody gives one
}

// mustHave are the columns of [DDL].
func mustHave() []column {
	const binary = "utf8mb4_bin"
	return []column{
		{name: "name", kind: "varchar", size: db.MaxNameBytes, collation: binary, key: true},
		{name: "owner", kind: "varchar", size: db.MaxOwnerBytes, collation: binary},
		{name: "run", kind: "varchar", size: db.MaxRunBytes, collation: binary},
		{name: "token", kind: "bigint"},
		{name: "acquired_at", kind: "datetime", size: 6},
		{name: "renewed_at", kind: "datetime", size: 6},
		{name: "expires_at", kind: "datetime", size: 6},
		{name: "released_at", kind: "datetime", size: 6, null: true},
		{name: "revoked_at", kind: "datetime", size: 6, null: true},
	}
}

// readColumns asks for schema or NULL, and table. A server shows only columns
// that we have a right to.
const readColumns = `SELECT COLUMN_NAME, LOWER(DATA_TYPE), COALESCE(COLLATION_NAME, SPACE(0)), ` +
	`COALESCE(CHARACTER_MAXIMUM_LENGTH, DATETIME_PRECISION, 0), IS_NULLABLE = 'YES', COLUMN_KEY = 'PRI', ` +
	`IS_NULLABLE = 'YES' OR COLUMN_DEFAULT IS NOT NULL OR COALESCE(EXTRA, SPACE(0)) <> SPACE(0) ` +
	`FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = COALESCE(?, DATABASE()) AND TABLE_NAME = ?`

// checkTable says whether there is a table of that name. The error wraps
// ErrRefused when it is not one of ours.
func (s *Store) checkTable(ctx context.Context) (found bool, err error) {
	var schema any
	table := s.table
	if before, after, ok := strings.Cut(s.table, "."); ok {
		schema, table = before, after
	}
	has := make(map[string]column)
	err = s.with(ctx, keepOpen, func(conn *sql.Conn) error {
		rows, err := conn.QueryContext(ctx, readColumns, schema, table)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var c column
			if err := rows.Scan(&c.name, &c.kind, &c.collation, &c.size, &c.null, &c.key, &c.filled); err != nil {
				return err
			}
			has[strings.ToLower(c.name)] = c
		}
		return rows.Err()
	})
	if err != nil || len(has) == 0 {
		return false, err
	}
	if why := differences(has); why != "" {
		return true, fmt.Errorf("%w: %s", db.ErrRefused, notOurs(s.table, why))
	}
	return true, nil
}

// notOurs is what an operator is told who has named somebody else's table.
func notOurs(table, why string) string {
	return fmt.Sprintf("table %s is not a lockgate table: %s; name another table in LOCKGATE_DB_TABLE", table, why)
}

// differences says what keeps a table with these columns from being ours; empty
// when nothing does. A column more is none as long as it may be left out.
func differences(has map[string]column) string {
	var missing, other []string
	keyed := true // by name and nothing else
	differs := func(format string, args ...any) { other = append(other, fmt.Sprintf(format, args...)) }
	for _, want := range mustHave() {
		got, ok := has[want.name]
		delete(has, want.name)
		switch {
		case !ok:
			missing = append(missing, want.name)
		case got.kind != want.kind:
			differs("column %s is a %s, not a %s", want.name, got.kind, want.kind)
		case got.size < want.size:
			differs("column %s is too narrow, %d instead of %d", want.name, got.size, want.size)
		case got.collation != want.collation:
			differs("column %s is compared by %s, not by %s", want.name, got.collation, want.collation)
		case want.null && !got.null:
			differs("column %s cannot be NULL", want.name)
		}
		keyed = keyed && got.key == want.key
	}
	for _, name := range slices.Sorted(maps.Keys(has)) {
		if extra := has[name]; !extra.filled {
			differs("its column %s has no default", name)
		}
		keyed = keyed && !has[name].key
	}
	if !keyed {
		// Without a unique name two owners could have a row each.
		differs("its primary key is not the column name")
	}
	if len(missing) > 0 {
		other = append([]string{"it has no column " + strings.Join(missing, ", ")}, other...)
	}
	return strings.Join(other, ", ")
}

// explainTable adds to a refusal for the table's columns which of them it is.
func (s *Store) explainTable(ctx context.Context, err error) error {
	if !isWrongTable(err) {
		return err
	}
	if found, why := s.checkTable(ctx); found && why != nil {
		return why
	}
	return err
}
