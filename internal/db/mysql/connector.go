package mysql

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/lockgate/lockgate/internal/db"
)

// The TLS modes of a [Target].
const (
	// TLSDisable never encrypts.
	TLSDisable = "disable"

	// TLSPrefer encrypts when the server can, and connects without when it
	// cannot. It does not ask who the server is.
	TLSPrefer = "prefer"

	// TLSRequire encrypts or does not connect. It does not ask who the server
	// is.
	TLSRequire = "require"

	// TLSVerifyCA encrypts, and connects only to a server whose certificate is
	// valid and signed by one of the Authorities, whatever its name.
	TLSVerifyCA = "verify-ca"

	// TLSVerifyFull is TLSVerifyCA, and the certificate must be for the host of
	// the address, a name or an IP address.
	TLSVerifyFull = "verify-full"
)

// Target is where a connection goes to, and as whom.
type Target struct {
	Network  string // "tcp", also when empty, or "unix"
	Address  string // host:port, or the path of a socket
	User     string
	Password string
	Database string

	// TLS is one of the modes above; empty is TLSDisable. Connections through a
	// socket are never encrypted.
	TLS string

	// Authorities are whom TLSVerifyCA and TLSVerifyFull trust; nil is the
	// system's.
	Authorities *x509.CertPool

	// Certificate is ours, for a server that asks for one; nil is none.
	Certificate *tls.Certificate
}

// config is the driver's way to say the target. Its own limits are a second line
// of defence behind the context of the call, and later, so that it is the
// context that says why.
func (t Target) config(limit time.Duration, log mysql.Logger) (*mysql.Config, error) {
	c := mysql.NewConfig()
	c.User, c.Passwd, c.DBName = t.User, t.Password, t.Database
	c.Net, c.Addr = t.Network, t.Address
	c.Timeout, c.ReadTimeout, c.WriteTimeout = 2*limit, 2*limit, 2*limit
	c.Logger = log
	c.ClientFoundRows = true   // an UPDATE counts the rows it matched
	c.InterpolateParams = true // one round trip, nothing prepared
	c.ConnectionAttributes = "program_name:lockgate"

	encryption := &tls.Config{MinVersion: tls.VersionTLS12}
	switch t.TLS {
	case "", TLSDisable:
		return c, nil
	case TLSPrefer:
		c.AllowFallbackToPlaintext = true
		encryption.InsecureSkipVerify = true
	case TLSRequire:
		encryption.InsecureSkipVerify = true
	case TLSVerifyCA:
		// This turns off the check of the name, and the rest with it, which
		// VerifyConnection makes up for (the documentation of crypto/tls has this
		// as its example). It is called for a resumed session, too.
		encryption.InsecureSkipVerify = true
		encryption.VerifyConnection = signedBy(t.Authorities)
	case TLSVerifyFull:
		encryption.RootCAs = t.Authorities // the driver fills in the address's host
	default:
		return nil, fmt.Errorf("TLS mode %q: want %s, %s, %s, %s or %s", t.TLS, TLSDisable, TLSPrefer, TLSRequire, TLSVerifyCA, TLSVerifyFull)
	}
	if t.Network == "unix" {
		return c, nil
	}
	if t.Certificate != nil {
		encryption.Certificates = []tls.Certificate{*t.Certificate}
	}
	c.TLS = encryption
	return c, nil
}

// signedBy checks that a server's certificate leads to one of the authorities,
// or the system's, and is valid now.
func signedBy(authorities *x509.CertPool) func(tls.ConnectionState) error {
	return func(state tls.ConnectionState) error {
		if len(state.PeerCertificates) == 0 {
			return errors.New("the server shows no certificate")
		}
		between := x509.NewCertPool()
		for _, certificate := range state.PeerCertificates[1:] {
			between.AddCert(certificate)
		}
		_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: authorities, Intermediates: between})
		if err != nil {
			return &tls.CertificateVerificationError{UnverifiedCertificates: state.PeerCertificates, Err: err}
		}
		return nil
	}
}

// connector makes connections that are ready for statements.
type connector struct {
	target func() (Target, error)
	limit  time.Duration
	setUp  string
}

// Connect asks for the target and connects to it.
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	target, err := c.target()
	if err != nil {
		return nil, fmt.Errorf("find the database: %w", err)
	}
	log := new(lastWords)
	config, err := target.config(c.limit, log)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", db.ErrRefused, err)
	}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, err
	}
	conn, err := connector.Connect(ctx)
	if err == nil {
		if err = c.prepare(ctx, conn); err == nil {
			return conn, nil
		}
		_ = conn.Close() // an error is a goodbye that was not heard
	}
	return nil, &connectError{address: target.Address, err: log.explain(err)}
}

// connectError says where a connection was to go to.
type connectError struct {
	address string
	err     error
}

func (e *connectError) Error() string { return fmt.Sprintf("connect to %s: %v", e.address, e.err) }

func (e *connectError) Unwrap() error { return e.err }

// explain adds to the driver's error what it says only in its log.
func (l *lastWords) explain(err error) error {
	switch {
	case errors.Is(err, mysql.ErrUnknownPlugin):
		return fmt.Errorf("%w: %s", err, l.last())
	case isAlert(err), isAlert(l.err()):
		return fmt.Errorf("%w: %s: %w", errAlert, l.last(), err)
	case errors.Is(err, mysql.ErrInvalidConn), errors.Is(err, mysql.ErrMalformPkt), errors.Is(err, mysql.ErrPktSync):
		return fmt.Errorf("%w: %s: %w", errNoServer, l.last(), err)
	}
	return err
}

// prepare sets the session up. A server that does not know the lock wait is
// asked for the rest alone, without which we would not be understood, and
// nothing we say would last.
func (c *connector) prepare(ctx context.Context, conn driver.Conn) error {
	session, ok := conn.(driver.ExecerContext)
	if !ok {
		return fmt.Errorf("the driver's %T cannot execute", conn)
	}
	_, err := session.ExecContext(ctx, c.setUp, nil)
	if _, refused := errors.AsType[*mysql.MySQLError](err); refused {
		_, err = session.ExecContext(ctx, setAlways, nil)
	}
	return err
}

// errAlert says that the server has ended the TLS handshake, or the connection
// right after it: in TLS 1.3 a client hears only then that its certificate is
// refused.
var errAlert = errors.New("the server does not accept how we encrypt")

// errNoServer says that what answered did not speak like a server, or hung up.
var errNoServer = errors.New("there is no MySQL or MariaDB server that talks to us")

// isAlert reports whether err is what the other side of a TLS connection has
// sent to end it. The type of the alert itself is private to crypto/tls.
func isAlert(err error) bool {
	remote, ok := errors.AsType[*net.OpError](err)
	return ok && remote.Op == "remote error"
}

// Driver is what database/sql wants to have.
func (c *connector) Driver() driver.Driver { return mysql.MySQLDriver{} }

// setAlways undoes what the server's defaults or its init_connect may have done
// to the session. The character set is more than the bytes of a name: the driver
// quotes parameters for utf8mb4, and in some others a character can swallow the
// backslash before a quote.
const setAlways = "SET NAMES utf8mb4, autocommit = 1"

// setUpStatement is the only statement that is sent before ours.
func setUpStatement(lockWait time.Duration) string {
	if lockWait <= 0 {
		return setAlways
	}
	seconds := (lockWait + time.Second - 1) / time.Second
	return fmt.Sprintf("%s, innodb_lock_wait_timeout = %d", setAlways, seconds)
}

// limitError is the cause of a context that our own limit has ended.
type limitError time.Duration

func (e limitError) Error() string {
	return fmt.Sprintf("no answer within %s", time.Duration(e))
}

// Is makes it a deadline like any other.
func (e limitError) Is(target error) bool { return target == context.DeadlineExceeded }

// lastWords is a logger that keeps the driver's last line for an error message,
// and nothing else.
type lastWords struct {
	mu    sync.Mutex
	line  string
	cause error // the error in that line, if there is one
}

// Print keeps a line, but for the place in the driver that says it.
func (l *lastWords) Print(v ...any) {
	if len(v) > 1 {
		v = v[1:]
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.line = strings.TrimSpace(fmt.Sprintln(v...))
	l.cause = nil
	for _, word := range v {
		if err, ok := word.(error); ok {
			l.cause = err
		}
	}
}

func (l *lastWords) err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}

func (l *lastWords) last() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.line
}
