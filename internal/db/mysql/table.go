package mysql

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/lockgate/lockgate/internal/db"
)

// DefaultTable is the table that is used when Options name none.
const DefaultTable = "lockgate_locks"

// blankMark follows a blank that would otherwise be the last character.
const blankMark = "\u2420" // ␠

// maxIdentifier is the longest name of a table or schema that a server takes.
const maxIdentifier = 64

// quoteTable returns a table's name as it is written in statements.
func quoteTable(table string) (string, error) {
	parts := strings.Split(table, ".")
	if len(parts) > 2 || slices.ContainsFunc(parts, func(part string) bool { return !isPlain(part) }) {
		return "", fmt.Errorf("table name %q: want TABLE or SCHEMA.TABLE of letters, digits, _, $ and -, each up to %d", table, maxIdentifier)
	}
	return "`" + strings.Join(parts, "`.`") + "`", nil
}

// isPlain reports whether name has only characters that need no thought in an
// identifier. It is no regular expression because that would be compiled at each
// start, also at the starts that never see a table: it cost a quarter of a
// millisecond.
func isPlain(name string) bool {
	for _, c := range []byte(name) {
		switch {
		case '0' <= c && c <= '9', 'A' <= c && c <= 'Z', 'a' <= c && c <= 'z', c == '_', c == '$', c == '-':
		default:
			return false
		}
	}
	return name != "" && len(name) <= maxIdentifier
}

// DDL returns the statement that creates the lock table. Who uses the table
// needs the rights SELECT, INSERT and UPDATE on it. The error says what is
// wrong with the name.
func DDL(table string) (string, error) {
	quoted, err := quoteTable(table)
	if err != nil {
		return "", err
	}
	return ddl("IF NOT EXISTS " + quoted), nil
}

// ddl is the definition of a table, after what is said of its name.
func ddl(table string) string {
	return `CREATE TABLE ` + table + ` (
  name        VARCHAR(255)    NOT NULL COMMENT 'the lock',
  owner       VARCHAR(512)    NOT NULL COMMENT 'who has it, or had it last',
  run         VARCHAR(255)    NOT NULL COMMENT 'the run that the owner belongs to, may be empty',
  token       BIGINT UNSIGNED NOT NULL COMMENT 'fencing token, only grows',
  acquired_at DATETIME(6)     NOT NULL COMMENT 'UTC, as all times here',
  renewed_at  DATETIME(6)     NOT NULL COMMENT 'last sign of life of the owner',
  expires_at  DATETIME(6)     NOT NULL COMMENT 'free from then on',
  released_at DATETIME(6)     NULL     COMMENT 'the owner has let go',
  revoked_at  DATETIME(6)     NULL     COMMENT 'an operator has refused the owner further renewals',
  PRIMARY KEY (name)
) ENGINE = InnoDB
  ROW_FORMAT = DYNAMIC
  DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'locks of lockgate, one row each, never deleted'`
}

// mark returns text as it is stored: the server takes text that differs only
// in blanks at its end for equal, so the last character is never a blank.
func mark(text string) string {
	if strings.HasSuffix(text, " ") || strings.HasSuffix(text, blankMark) {
		return text + blankMark
	}
	return text
}

// unmark returns stored text as it was before mark.
func unmark(stored string) string {
	text, marked := strings.CutSuffix(stored, blankMark)
	if marked && (strings.HasSuffix(text, " ") || strings.HasSuffix(text, blankMark)) {
		return text
	}
	return stored
}

// checkText says why the table cannot hold a name, owner or run. Its columns
// count characters, so that only a mark can make text too wide.
func checkText(what, text string, minBytes, maxBytes int) error {
	switch {
	case len(text) < minBytes:
		return fmt.Errorf("%s is empty", what)
	case len(text) > maxBytes:
		return fmt.Errorf("%s has %d bytes, at most %d are possible", what, len(text), maxBytes)
	case !utf8.ValidString(text):
		return fmt.Errorf("%s %q is not UTF-8", what, text)
	case utf8.RuneCountInString(mark(text)) > maxBytes:
		return fmt.Errorf("%s %q ends in a blank and is then one character too long", what, text)
	}
	return nil
}

func checkName(name string) error { return checkText("name", name, 1, db.MaxNameBytes) }

func checkOwner(owner string) error { return checkText("owner", owner, 1, db.MaxOwnerBytes) }

func checkRun(run string) error { return checkText("run", run, 0, db.MaxRunBytes) }
