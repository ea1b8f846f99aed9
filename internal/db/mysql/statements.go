package mysql

import "strings"

// statements are the SQL of one table. Parameters are written into the text by
// the driver, so that each is one round trip.
//
// No assignment reads a column that another assignment of the same statement
// has written before it: servers differ in whether it would see the old value
// or the new one.
type statements struct {
	acquire string // ttl µs, owner, run, name, run, owner
	insert  string // name, owner, run, ttl µs
	look    string // name
	renew   string // ttl µs, name, owner, token
	release string // keep µs, name, owner, token, token
	revoke  string // name, token
	end     string // name, token
	list    string
	create  string

	createNew string // fails when there is a table
}

func newStatements(quoted string) statements {
	sql := func(text string) string {
		return strings.NewReplacer(
			"$table", quoted,
			"$now", "UTC_TIMESTAMP(6)",
			// The run. One sql_mode of MariaDB reads an empty string as NULL.
			"$run", "COALESCE(?, SPACE(0))",
			// Unix milliseconds. UNIX_TIMESTAMP would read its argument in the
			// session's time zone.
			"$ms", "CAST(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000 AS UNSIGNED)",
		).Replace(text)
	}
	return statements{
		// LAST_INSERT_ID(x) is x, and puts it into the answer.
		acquire: sql(`UPDATE $table SET token = LAST_INSERT_ID(GREATEST(token + 1, $ms)), ` +
			`acquired_at = $now, renewed_at = $now, expires_at = $now + INTERVAL ? MICROSECOND, ` +
			`released_at = NULL, revoked_at = NULL, owner = ?, run = $run ` +
			// What is kept after its release is not kept from its own run. NULL, for
			// no run, equals nothing.
			`WHERE name = ? AND (expires_at <= $now OR (released_at IS NOT NULL AND run = NULLIF(?, SPACE(0)))) ` +
			// An owner serves one request; this may be its late word.
			`AND NOT (owner = ? AND (released_at IS NOT NULL OR revoked_at IS NOT NULL))`),

		insert: sql(`INSERT INTO $table (name, owner, run, token, acquired_at, renewed_at, expires_at) ` +
			`VALUES (?, ?, $run, LAST_INSERT_ID($ms), $now, $now, $now + INTERVAL ? MICROSECOND)`),

		look: sql(`SELECT owner, run, token, released_at IS NOT NULL, revoked_at IS NOT NULL, ` +
			`TIMESTAMPDIFF(MICROSECOND, acquired_at, $now), TIMESTAMPDIFF(MICROSECOND, $now, expires_at) ` +
			`FROM $table WHERE name = ?`),

		// Adding 0 times the age changes nothing but brings the age home.
		renew: sql(`UPDATE $table SET expires_at = GREATEST(expires_at, $now + INTERVAL ? MICROSECOND), ` +
			`renewed_at = $now + INTERVAL 0 * LAST_INSERT_ID(GREATEST(TIMESTAMPDIFF(MICROSECOND, acquired_at, $now), 0)) MICROSECOND ` +
			`WHERE name = ? AND owner = ? AND token = ? AND expires_at > $now AND released_at IS NULL AND revoked_at IS NULL`),

		// What is free stays free, and the first release decides.
		release: sql(`UPDATE $table SET expires_at = IF(released_at IS NULL AND expires_at > $now, ` +
			`GREATEST($now, acquired_at + INTERVAL ? MICROSECOND), expires_at), ` +
			`released_at = COALESCE(released_at, $now) ` +
			`WHERE name = ? AND owner = ? AND (token = ? OR ? = 0)`),

		// Nobody is left to be asked when it is only kept after its release.
		revoke: sql(`UPDATE $table SET expires_at = IF(released_at IS NULL, expires_at, $now), ` +
			`revoked_at = COALESCE(revoked_at, $now) ` +
			`WHERE name = ? AND token = ? AND expires_at > $now`),

		end: sql(`UPDATE $table SET expires_at = $now, revoked_at = COALESCE(revoked_at, $now) ` +
			`WHERE name = ? AND token = ? AND expires_at > $now`),

		list: sql(`SELECT name, owner, run, token, released_at IS NOT NULL, revoked_at IS NOT NULL, ` +
			`TIMESTAMPDIFF(MICROSECOND, acquired_at, $now), TIMESTAMPDIFF(MICROSECOND, renewed_at, $now), ` +
			`TIMESTAMPDIFF(MICROSECOND, $now, expires_at) FROM $table`),

		create:    ddl("IF NOT EXISTS " + quoted),
		createNew: ddl(quoted),
	}
}

// listOf is the list of n names.
func (s statements) listOf(n int) string {
	if n == 0 {
		return s.list + " ORDER BY name"
	}
	return s.list + " WHERE name IN (?" + strings.Repeat(", ?", n-1) + ") ORDER BY name"
}
