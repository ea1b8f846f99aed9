package mysql

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/lockgate/lockgate/internal/db"
)

// The server's errors that mean something to us, see [decision].
const (
	errTableExists  = 1050
	errDuplicateKey = 1062
	errNoSuchTable  = 1146
)

// decision is what an error of the server means to the caller.
type decision int

const (
	unknown     decision = iota // perhaps done, perhaps not
	again                       // undone, and worth another try at once
	refused                     // not done, and no other try will help
	wrongTable                  // refused, because the table is not ours
	noTable                     // not done: there is no table
	unavailable                 // this server will not do it; perhaps another one behind that name
)

// decide reads a server's error by its number.
func decide(e *mysql.MySQLError) decision {
	switch e.Number {
	case
		1020, // record has changed since last read
		1205, // lock wait timeout exceeded
		1213, // deadlock, or refused by the other nodes of a cluster
		1614, // deadlock in an XA branch
		3101: // refused by the other members of a group at commit
		return again

	case
		1044,       // no access to the database
		1045, 1698, // wrong user or password
		1046,       // no database selected
		1049,       // unknown database
		1064,       // our SQL is not understood
		1130,       // our host may not connect
		1142, 1143, // no right to the table, to a column
		1227,       // another right is missing
		1251, 1275, // the account's way to log in is not ours
		1524,       // the account's way to log in is not loaded
		1820, 1862, // the password has expired
		3118, 4151, // the account is locked
		3159: // TLS is required
		return refused

	case
		1048,                   // a column cannot be NULL
		1054,                   // unknown column
		1136,                   // another number of columns
		1264,                   // a number out of range
		1265, 1292, 1366, 1411, // a value of the wrong type
		1364,                         // a column of somebody else has no default
		1406,                         // a column is too narrow
		1288, 1348, 1393, 1394, 1471, // a view that cannot be written
		1442, 1644, // a trigger of somebody else
		1451, 1452, 3819, 4025: // a constraint of somebody else
		return wrongTable

	case errNoSuchTable:
		return noTable

	case
		1047,                   // a cluster's node that has lost the others
		1053,                   // server shutdown in progress
		1290, 1792, 1836, 1874: // read-only: as an option, a transaction, a mode, or InnoDB
		return unavailable
	}
	if string(e.SQLState[:]) == "40001" {
		return again
	}
	return unknown
}

// translate makes a driver's error one of the contract. Only an error that the
// server has sent decides anything; whatever else ended the call leaves its
// outcome unknown, and says so with the reason for which ctx has ended, if it
// has.
func (s *Store) translate(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if answer, ok := errors.AsType[*mysql.MySQLError](err); ok {
		switch decide(answer) {
		case again:
			return fmt.Errorf("%w: %w", db.ErrAgain, err)
		case refused:
			return fmt.Errorf("%w: %w%s", db.ErrRefused, err, hint(answer))
		case wrongTable:
			return fmt.Errorf("%w: %s: %w", db.ErrRefused, notOurs(s.table, "it does not take our rows"), err)
		case noTable:
			return s.noTable(err)
		case unavailable:
			return fmt.Errorf("the server takes no writes now, it is read-only, stopping or cut off from its cluster: %w", err)
		default:
			return err
		}
	}
	if ctx.Err() != nil {
		cause := context.Cause(ctx)
		if !errors.Is(cause, ctx.Err()) {
			cause = fmt.Errorf("%w: %w", cause, ctx.Err())
		}
		if connecting, ok := errors.AsType[*connectError](err); ok {
			return &connectError{connecting.address, cause}
		}
		return cause
	}
	if why := whyNotEncrypted(err); why != "" {
		return fmt.Errorf("%w: %s: %w", db.ErrRefused, why, err)
	}
	for _, ours := range []error{
		mysql.ErrUnknownPlugin, mysql.ErrCleartextPassword, mysql.ErrOldPassword, mysql.ErrNativePassword,
		mysql.ErrOldProtocol,
	} {
		if errors.Is(err, ours) {
			return fmt.Errorf("%w: %w", db.ErrRefused, err)
		}
	}
	if errors.Is(err, mysql.ErrInvalidConn) && !errors.Is(err, errNoServer) {
		return fmt.Errorf("the connection was lost: %w", err)
	}
	return err
}

// hint is what to look at after a refusal whose words do not say it.
func hint(answer *mysql.MySQLError) string {
	switch answer.Number {
	case 1045, 1698:
		// The server says the same when an account requires encryption or a
		// client's certificate, and gets none.
		return "; look at the user and the password (LOCKGATE_DB_URL, LOCKGATE_DB_USER, LOCKGATE_DB_PASSWORD or their files), and at LOCKGATE_DB_TLS and LOCKGATE_DB_CERT_FILE if the account requires TLS or a certificate"
	case 1044, 1049:
		return "; look at the database that LOCKGATE_DB_URL names"
	case 3159:
		return "; set LOCKGATE_DB_TLS to require, verify-ca or verify-full"
	}
	return ""
}

// whyNotEncrypted says which setting is to be looked at when client and server
// did not agree on TLS; empty when it was something else.
func whyNotEncrypted(err error) string {
	if errors.Is(err, mysql.ErrNoTLS) {
		return "the server has no TLS, and LOCKGATE_DB_TLS asks for it; turn it on in the server, or set LOCKGATE_DB_TLS=prefer to go without"
	}
	if errors.Is(err, errAlert) || isAlert(err) {
		return "the server ends TLS; look at LOCKGATE_DB_CERT_FILE, which it may not trust or may ask for, and at the versions of TLS it has (1.2 or later is needed)"
	}
	wrong, ok := errors.AsType[*tls.CertificateVerificationError](err)
	if !ok {
		return ""
	}
	if _, ok := errors.AsType[x509.HostnameError](wrong.Err); ok {
		return "the server's certificate is for another host than LOCKGATE_DB_URL names; name the host as the certificate does, or set LOCKGATE_DB_TLS=verify-ca, which does not look at names"
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](wrong.Err); ok {
		return "the server's certificate is not signed by an authority of LOCKGATE_DB_CA_FILE (the system's when that is unset); name the file with the right one"
	}
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](wrong.Err); ok && invalid.Reason == x509.Expired {
		return "the server's certificate has expired or is not valid yet, as LOCKGATE_DB_TLS asks for; renew it, and compare the clocks"
	}
	return "the server's certificate does not stand the check that LOCKGATE_DB_TLS asks for"
}

// notSent says of the error of a connection that could not be made that nothing
// was sent, unless the server has answered something that decides.
func notSent(err error) error {
	if errors.Is(err, db.ErrRefused) || errors.Is(err, db.ErrAgain) {
		return err
	}
	return fmt.Errorf("%w: %w", db.ErrUnreachable, err)
}

// noTable says that the table is missing, why, and how it is made.
func (s *Store) noTable(why error) error {
	// On one line: a log would write line breaks as \n, and nobody could paste it.
	return fmt.Errorf("%w: %w; create it with: %s", db.ErrNoTable, why, strings.Join(strings.Fields(s.sql.create), " "))
}

// isNumber reports whether the server answered with the error of that number.
func isNumber(err error, number uint16) bool {
	answer, ok := errors.AsType[*mysql.MySQLError](err)
	return ok && answer.Number == number
}

// isWrongTable reports whether the server says that the table is not ours.
func isWrongTable(err error) bool {
	answer, ok := errors.AsType[*mysql.MySQLError](err)
	return ok && decide(answer) == wrongTable
}

// spoilsConnection reports whether the connection must not be used again: the
// next one may find another server behind the name, or rights that were granted
// meanwhile. Those on a whole database reach a session only when it chooses that
// database (MySQL manual, "When Privilege Changes Take Effect").
func spoilsConnection(err error) bool {
	answer, ok := errors.AsType[*mysql.MySQLError](err)
	if !ok {
		return false
	}
	d := decide(answer)
	return d == unavailable || d == refused
}
