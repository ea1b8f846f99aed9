package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Kind is a kind of database.
type Kind string

// The kinds of this version.
const (
	MySQL  Kind = "mysql" // MariaDB too
	SQLite Kind = "sqlite"
)

// TLS says whether the connection to the database is encrypted, and whether the
// server has to prove who it is.
type TLS string

// The values of DB_TLS. TLSPrefer encrypts where the server can, TLSRequire does
// not connect otherwise; neither checks who the server is. TLSVerifyCA checks
// that an authority which we trust has signed the server's certificate, and
// TLSVerifyFull also that it is for the host that we connect to.
const (
	TLSDisable    TLS = "disable"
	TLSPrefer     TLS = "prefer"
	TLSRequire    TLS = "require"
	TLSVerifyCA   TLS = "verify-ca"
	TLSVerifyFull TLS = "verify-full"
)

// verifies says whether the server's certificate is checked.
func (t TLS) verifies() bool { return t == TLSVerifyCA || t == TLSVerifyFull }

// What is printed in place of a password, and of nothing.
const (
	redacted   = "[redacted]"
	noDatabase = "no database"
)

// Database says where the locks are and how to get in. It prints without its
// secrets, with any verb and in any log. The zero value is no database.
type Database struct {
	Kind Kind

	tls                       TLS
	caFile, certFile, keyFile string
	url, password             secret
	urlFile, user, passwordIn string
	shown                     string
}

// secret keeps a string where printing a struct that contains it by reflection
// finds an address only.
type secret struct{ p *string }

func hide(s string) secret { return secret{&s} }

func (s secret) isSet() bool { return s.p != nil }

// Target is a [Database] at one moment. Its Password is in the clear; it prints
// without it.
type Target struct {
	Kind     Kind
	Address  string // host:port of MySQL
	User     string
	Password string
	Database string // the schema of MySQL
	TLS      TLS
	Path     string // the absolute path of SQLite's file

	Authorities *x509.CertPool   // of DB_CA_FILE; nil for the system's
	Certificate *tls.Certificate // of DB_CERT_FILE and DB_KEY_FILE; nil for none
}

// String is the database as Load saw it, without secrets.
func (d Database) String() string {
	if d.shown == "" {
		return noDatabase
	}
	return d.shown
}

// LogValue is String.
func (d Database) LogValue() slog.Value { return slog.StringValue(d.String()) }

// Format prints String for every verb.
func (d Database) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, d.String()) }

// MarshalText is String, so that no encoder shows more.
func (d Database) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// String is the target as a URL, without its password.
func (t Target) String() string {
	switch {
	case t.Kind == SQLite:
		return (&url.URL{Scheme: "sqlite", Path: t.Path}).String()
	case t.Kind == "":
		return noDatabase
	}
	user := escape(t.User)
	if t.Password != "" {
		user += ":" + redacted
	}
	return fmt.Sprintf("%s://%s@%s/%s", t.Kind, user, t.Address, escape(t.Database))
}

// LogValue is String.
func (t Target) LogValue() slog.Value { return slog.StringValue(t.String()) }

// Format prints String for every verb.
func (t Target) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, t.String()) }

// MarshalText is String, so that no encoder shows more.
func (t Target) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// Resolve says where to connect now. It reads the files that DB_URL_FILE,
// DB_PASSWORD_FILE, DB_CA_FILE, DB_CERT_FILE and DB_KEY_FILE name, each time, so
// that a password or a certificate that was changed is found by the next
// connection; without such files it always returns the same.
// One newline at the end of a URL's or a password's file (\n or \r\n) is not
// part of the value.
//
// The error is an [*Error] without secrets. It may be called from several
// goroutines.
func (d Database) Resolve() (Target, error) {
	t, problems := d.resolve()
	if len(problems) > 0 {
		return Target{}, &Error{Problems: problems}
	}
	if d.Kind != "" && t.Kind != d.Kind {
		return Target{}, &Error{Problems: []string{fmt.Sprintf(
			"%s (%s) has changed from %s to %s; start lockgate again to change the kind of database", varURLFile, d.urlFile, d.Kind, t.Kind)}}
	}
	return t, nil
}

func (d Database) resolve() (Target, []string) {
	var problems []string
	problem := func(format string, args ...any) {
		problems = append(problems, fmt.Sprintf(format, args...))
	}
	raw, from := "", varURL
	switch {
	case d.urlFile != "":
		from = fmt.Sprintf("%s (%s)", varURLFile, d.urlFile)
		var err error
		if raw, err = readSecret(d.urlFile); err != nil {
			problem("%s %v", from, err)
		}
	case d.url.isSet():
		raw = *d.url.p
	default:
		problem("%s is not set", varURL)
	}
	var t Target
	if len(problems) == 0 {
		var err error
		if t, err = parseURL(raw); err != nil {
			problem("%s %v", from, err)
		}
	}
	readable := len(problems) == 0

	password, passwordFrom := "", ""
	switch {
	case d.passwordIn != "":
		passwordFrom = varPasswordFile
		var err error
		if password, err = readSecret(d.passwordIn); err != nil {
			problem("%s (%s) %v", varPasswordFile, d.passwordIn, err)
		}
	case d.password.isSet():
		password, passwordFrom = *d.password.p, varPassword
	}
	if !readable {
		return Target{}, problems // nothing to compare with
	}

	if t.Kind == SQLite {
		// A secret for a file that has none is meant for another database.
		for _, v := range []struct {
			name string
			set  bool
		}{
			{varUser, d.user != ""}, {passwordFrom, passwordFrom != ""},
			{varTLS + "=" + string(d.tls), d.tls == TLSRequire || d.tls.verifies()},
			{varCAFile, d.caFile != ""}, {varCertFile, d.certFile != ""}, {varKeyFile, d.keyFile != ""},
		} {
			if v.set {
				problem("%s means nothing to the SQLite file that %s names; unset one of them", v.name, from)
			}
		}
		return t, problems
	}

	t.TLS = d.tls
	problems = append(problems, d.certificates(&t)...)
	if d.user != "" {
		if t.User != "" && t.User != d.user {
			problem("%s and %s name different users; keep one of them", varUser, from)
		}
		t.User = d.user
	}
	if t.User == "" && len(problems) == 0 {
		problem("%s names no user; write mysql://user@host:3306/db, or set %s", from, varUser)
	}
	if passwordFrom != "" {
		if t.Password != "" {
			problem("%s has a password and %s is set too; keep one of them", from, passwordFrom)
		}
		t.Password = password
	}
	return t, problems
}

// Bounds of what is read from a file: a whole URL is far below the first, and
// all the authorities of a system below the second.
const (
	maxSecretBytes = 64 << 10
	maxPEMBytes    = 4 << 20
)

// readFile reads a whole file. The error continues a sentence whose subject is
// the file; it does not repeat the content.
func readFile(name string, maxBytes int64) ([]byte, error) {
	// Opening a pipe would wait for its writer, in the middle of a renewal.
	info, err := os.Stat(name)
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", cause(err))
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("is not a regular file; name a file that can be read again and again")
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", cause(err))
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", cause(err))
	}
	if int64(len(b)) > maxBytes {
		return nil, fmt.Errorf("is longer than %d bytes; it is hardly what was meant", maxBytes)
	}
	return b, nil
}

// readSecret reads a file that holds one value, as readFile does.
func readSecret(name string) (string, error) {
	b, err := readFile(name, maxSecretBytes)
	if err != nil {
		return "", err
	}
	s := strings.TrimSuffix(string(b), "\n")
	if len(s) < len(b) {
		s = strings.TrimSuffix(s, "\r")
	}
	if s == "" {
		return "", errors.New("is empty; write the value into it, or unset the variable")
	}
	return s, nil
}

// cause drops the path from an error of package os; the message has it already.
func cause(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	return err
}

const hostForm = `^[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_.])?$`

const (
	mysqlForm  = "mysql://user@host:3306/db"
	sqliteForm = "sqlite:///path/to/locks.db"
	encodeHint = "percent-encode characters such as / ? # @ : % in the user, the password and the database"
)

// parseURL reads the URL of a database. Its errors are fixed sentences that
// repeat nothing of the URL but a scheme they know, because any part of a
// malformed URL may be a piece of the password; they continue a sentence whose
// subject is the variable.
func parseURL(raw string) (Target, error) {
	scheme, rest, ok := strings.Cut(raw, "://")
	scheme = strings.ToLower(scheme)
	// Databases that a later version knows.
	later := []string{"postgres", "postgresql", "redis", "rediss", "mongodb", "mongodb+srv", "zookeeper", "etcd", "kube"}
	switch {
	case firstUnprintable(raw) >= 0 || strings.Contains(raw, " "):
		return Target{}, errors.New("has a blank or a character that cannot be printed; remove or percent-encode it")
	case strings.HasPrefix(scheme, "jdbc:"):
		return Target{}, fmt.Errorf("is a JDBC URL; write it as %s", mysqlForm)
	case !ok && strings.HasPrefix(strings.ToLower(raw), "sqlite:"):
		return Target{}, fmt.Errorf("does not name a file; write an absolute path, such as %s", sqliteForm)
	case !ok:
		return Target{}, fmt.Errorf("is not a URL; write %s or %s", mysqlForm, sqliteForm)
	case scheme == "mysql", scheme == "mariadb":
		return parseMySQL(rest)
	case scheme == "sqlite":
		return parseSQLite(rest)
	case slices.Contains(later, scheme):
		return Target{}, fmt.Errorf("has the scheme %s://, which is not supported by this version yet; use %s or %s", scheme, mysqlForm, sqliteForm)
	}
	return Target{}, fmt.Errorf("has an unknown scheme; write %s or %s", mysqlForm, sqliteForm)
}

func parseMySQL(rest string) (Target, error) {
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	authority, tail := rest[:end], rest[end:]
	if strings.Contains(tail, "@") {
		// mysql://user:p/w@host/db has its password cut in two: what follows
		// the / would be taken, and shown, as the name of a database.
		return Target{}, fmt.Errorf("has an @ after the host: %s", encodeHint)
	}
	switch {
	case strings.Contains(tail, "#"):
		return Target{}, fmt.Errorf("has a #: %s", encodeHint)
	case strings.Contains(tail, "?"):
		return Target{}, fmt.Errorf("has parameters after a ?, and none are known; remove them, and set %s to choose encryption", varTLS)
	}

	t := Target{Kind: MySQL}
	host := authority
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		user, password, _ := strings.Cut(authority[:at], ":")
		host = authority[at+1:]
		var errUser, errPassword error
		t.User, errUser = url.PathUnescape(user)
		t.Password, errPassword = url.PathUnescape(password)
		if errUser != nil || errPassword != nil {
			return Target{}, errors.New("has a % that no two hexadecimal digits follow, in the user or the password; write %25 for a plain %")
		}
	}
	var err error
	if t.Address, err = parseHost(host); err != nil {
		return Target{}, err
	}
	name := strings.TrimPrefix(tail, "/")
	if strings.Contains(name, "/") {
		return Target{}, fmt.Errorf("has more than one / after the host; write %s", mysqlForm)
	}
	if t.Database, err = url.PathUnescape(name); err != nil {
		return Target{}, errors.New("has a % that no two hexadecimal digits follow, in the database; write %25 for a plain %")
	}
	if t.Database == "" {
		return Target{}, fmt.Errorf("names no database; write %s", mysqlForm)
	}
	if firstUnprintable(t.Database) >= 0 || firstUnprintable(t.User) >= 0 {
		return Target{}, errors.New("has a user or a database with a character that cannot be printed; remove it")
	}
	return t, nil
}

// parseHost returns host:port, with MySQL's port where none is written.
func parseHost(s string) (string, error) {
	malformed := fmt.Errorf("has a host or a port that is malformed; write %s, an IPv6 address in brackets, and %s", mysqlForm, encodeHint)
	host, port := s, "3306"
	if inside, ok := strings.CutPrefix(s, "["); ok {
		address, after, closed := strings.Cut(inside, "]")
		ip, err := netip.ParseAddr(address)
		if !closed || err != nil || !ip.Is6() || ip.Zone() != "" {
			return "", malformed
		}
		host = address
		if after != "" {
			if port, ok = strings.CutPrefix(after, ":"); !ok {
				return "", malformed
			}
		}
	} else {
		if before, after, ok := strings.Cut(s, ":"); ok {
			host, port = before, after
		}
		if host == "" && !strings.Contains(port, ":") {
			return "", fmt.Errorf("names no host; write %s", mysqlForm)
		}
		if !matches(hostForm, host) {
			return "", malformed
		}
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return "", malformed
	}
	return net.JoinHostPort(host, strconv.FormatUint(n, 10)), nil
}

func parseSQLite(rest string) (Target, error) {
	if strings.ContainsAny(rest, "?#") {
		return Target{}, errors.New("has a ? or a #; there are no parameters for SQLite: percent-encode them when they belong to the path (%3F, %23)")
	}
	if !strings.HasPrefix(rest, "/") {
		return Target{}, fmt.Errorf("does not name an absolute path; write three slashes, such as %s", sqliteForm)
	}
	name, err := url.PathUnescape(rest)
	switch {
	case err != nil:
		return Target{}, errors.New("has a % that no two hexadecimal digits follow; write %25 for a plain %")
	case firstUnprintable(name) >= 0:
		return Target{}, errors.New("has a path with a character that cannot be printed; use another path")
	case strings.HasSuffix(name, "/"), path.Clean(name) == "/":
		return Target{}, fmt.Errorf("names a folder; write the path of a file, such as %s", sqliteForm)
	}
	return Target{Kind: SQLite, Path: path.Clean(name)}, nil
}

// escape makes any text part of a URL that parseURL reads.
func escape(s string) string {
	return strings.NewReplacer(":", "%3A", "@", "%40").Replace(url.PathEscape(s))
}

// database checks and fills where the locks are.
func (l *loader) database(c *Config, s settings) {
	before := len(l.problems)
	l.conflict(varURL, varURLFile)
	l.conflict(varPassword, varPasswordFile)
	if len(l.problems) > before || !l.fine(varURL, varURLFile, varUser, varPassword, varPasswordFile) {
		return
	}
	d := Database{
		tls: s.DBTLS, caFile: s.DBCAFile, certFile: s.DBCertFile, keyFile: s.DBKeyFile,
		urlFile: s.DBURLFile, user: s.DBUser, passwordIn: s.DBPasswordFile,
	}
	if !l.fine(varTLS, varCAFile, varCertFile, varKeyFile) {
		d.caFile, d.certFile, d.keyFile = "", "", "" // there is nothing to compare them with
	}
	if s.DBPassword != "" {
		d.password = hide(s.DBPassword)
	}
	if s.DBURL != "" {
		d.url = hide(s.DBURL)
	}
	if s.DBURL == "" && s.DBURLFile == "" {
		file, ok := l.defaultFile()
		if !ok {
			return
		}
		d.url = hide((&url.URL{Scheme: "sqlite", Path: file}).String())
		c.DatabaseIsDefault = true
	}
	t, problems := d.resolve()
	if len(problems) > 0 {
		l.problems = append(l.problems, problems...)
		return
	}
	d.Kind, d.shown = t.Kind, t.String()
	c.Database = d
}

// conflict reports two ways to say the same thing.
func (l *loader) conflict(a, b string) {
	if l.isSet(a) && l.isSet(b) {
		l.problem(a, "and %s are both set; keep one of them", b)
	}
}

// defaultFile returns the SQLite file of this user on this machine, which is
// not for a pod's containers, and only outside of any: inside one the file would go with
// the container and exclude nobody.
func (l *loader) defaultFile() (string, bool) {
	const example = "for example " + varURL + "=" + mysqlForm
	contained := l.whyContained() != ""
	switch {
	case l.cmd == Sidecar, l.cmd == Init:
		l.problem(varURL, "is not set; say where the locks are, %s", example)
		return "", false
	case contained:
		l.problem(varURL, "is not set, and inside a container there is no default, because a lock in it would exclude nobody; say where the locks are, %s, or %s on a volume that others mount too (this is a container, because %s)",
			example, sqliteForm, l.whyContained())
		return "", false
	}
	for _, name := range []string{varUser, varPassword, varPasswordFile, varCAFile, varCertFile, varKeyFile} {
		if l.isSet(name) {
			l.problem(varURL, "is not set, but %s is; say which database it is for, %s", name, example)
			return "", false
		}
	}
	state, home := l.vars["XDG_STATE_HOME"], l.vars["HOME"]
	switch {
	case filepath.IsAbs(state):
	case filepath.IsAbs(home):
		state = filepath.Join(home, ".local", "state")
	default:
		l.problem(varURL, "is not set, and without HOME or XDG_STATE_HOME there is no default; say where the locks are, %s", example)
		return "", false
	}
	return filepath.Join(state, "lockgate", "locks.db"), true
}

// whyContained says why this is taken for a container; empty when it is none.
func (l *loader) whyContained() string {
	if l.isSet("KUBERNETES_SERVICE_HOST") {
		return "KUBERNETES_SERVICE_HOST is set"
	}
	for _, mark := range []string{"/.dockerenv", "/run/.containerenv"} {
		if l.exists(mark) {
			return mark + " is there"
		}
	}
	return ""
}
