package mysql

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/lockgate/lockgate/internal/db"
	"github.com/lockgate/lockgate/internal/testserver"
)

func TestLeaseOutlivesARestartAndACrash(t *testing.T) {
	p := newPlace(t, server)
	store := open(t, p.options())
	lease := acquire(t, store, ask("job", "a"))
	for what, stop := range map[string]func() error{"stopped": server.Stop, "killed": server.Kill} {
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if _, err := store.Renew(t.Context(), lease); !decidesNothing(err) {
			t.Errorf("Renew on a server that is %s = %v; want an error that decides nothing", what, err)
		}
		if err := server.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		renew(t, store, lease)
		if _, err := store.TryAcquire(t.Context(), ask("job", "b")); !isOnly(err, db.ErrHeld) {
			t.Errorf("TryAcquire after the server was %s = %v; want ErrHeld", what, err)
		}
	}
	release(t, store, lease)
}

func TestFrozenServerBlocksNoCallPastItsLimit(t *testing.T) {
	p := newPlace(t, server)
	options := p.options()
	options.CallLimit = 200 * time.Millisecond
	store := open(t, options)
	fresh := open(t, options)
	patient := open(t, p.options())
	lease := acquire(t, patient, ask("job", "a"))
	// The limit may be met now and then on a busy machine before it is frozen.
	for {
		if _, err := store.Renew(t.Context(), lease); err == nil {
			break
		}
	}

	if err := server.Freeze(); err != nil {
		t.Fatal(err)
	}
	brief, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, contextErr := patient.Renew(brief, lease)
	_, limitErr := store.Renew(t.Context(), lease)
	_, againErr := store.Renew(t.Context(), lease)
	_, freshErr := fresh.Renew(t.Context(), lease)
	releaseErr := store.Release(t.Context(), lease, 0)
	for call, err := range map[string]error{
		"Renew with little time": contextErr, "Renew": limitErr, "Renew on a new connection": againErr,
		"Renew on the first connection": freshErr, "Release": releaseErr,
	} {
		if !decidesNothing(err) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s on a frozen server = %v; want a deadline", call, err)
		}
	}
	if limitErr != nil && !strings.Contains(limitErr.Error(), "no answer within 200ms") {
		t.Errorf("Renew at its limit says %q; want the limit", limitErr)
	}
	fresh.Close() // returns though the server says nothing
	if err := server.Thaw(); err != nil {
		t.Fatal(err)
	}
	// What was under way when the calls ended arrives now, the release too.
	if _, err := patient.Renew(t.Context(), lease); err != nil && !isOnly(err, db.ErrLost) {
		t.Errorf("Renew after the thaw = %v; want a lease, or ErrLost by the late release", err)
	}
}

func TestCloseEndsACallUnderWay(t *testing.T) {
	p := newPlace(t, server)
	f := p.forwarded(t)
	store := open(t, p.options())
	lease := acquire(t, store, ask("job", "a"))
	trap := f.DropReply(renewals, 1)
	errs := make(chan error)
	for range 2 { // one under way, one that waits for its turn
		go func() {
			_, err := store.Renew(t.Context(), lease)
			errs <- err
		}()
	}
	if err := trap.Caught(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := <-errs; !isOnly(err, nil) || !errors.Is(err, errClosed) {
			t.Errorf("Renew while the store is closed = %v; want %v", err, errClosed)
		}
	}
	if err := f.AwaitOpen(t.Context(), 0); err != nil {
		t.Error(err)
	}
	if _, err := store.TryAcquire(t.Context(), ask("job", "b")); !isOnly(err, nil) || !errors.Is(err, errClosed) {
		t.Errorf("TryAcquire after Close = %v; want %v", err, errClosed)
	}
	if err := store.Close(); err != nil {
		t.Errorf("second Close = %v; want nil", err)
	}
}

func TestCredentialsAreReadForEachConnection(t *testing.T) {
	p := newPlace(t, server)
	options := p.options()
	target := p.target
	options.Target = func() (Target, error) { return target, nil }
	store := open(t, options)
	lease := acquire(t, store, ask("job", "a"))

	server.Exec(t, "ALTER USER "+testserver.Quote(p.target.User)+"@'%' IDENTIFIED BY 'rotated'")
	renew(t, store, lease) // the open connection stays
	store.db.SetMaxIdleConns(-1)
	if _, err := store.Renew(t.Context(), lease); !isOnly(err, db.ErrRefused) {
		t.Errorf("Renew with the old password = %v; want ErrRefused", err)
	}
	target.Password = "rotated"
	renew(t, store, lease)
	release(t, store, lease)
}

func TestWaysToLogIn(t *testing.T) {
	server.Exec(t, "INSTALL SONAME 'auth_ed25519'", "INSTALL SONAME 'auth_pam'")
	t.Cleanup(func() {
		server.Exec(t, "UNINSTALL SONAME 'auth_ed25519'", "UNINSTALL SONAME 'auth_pam'")
	})
	p := newPlace(t, server)
	grants := []string{"SELECT, INSERT, UPDATE, CREATE ON " + p.target.Database + ".*"}
	for _, plugin := range []string{"mysql_native_password", "ed25519"} {
		target := p.target
		target.User = plugin
		server.NewUser(t, testserver.User{Name: plugin, Password: target.Password, Plugin: plugin, Grants: grants})
		options := p.options()
		options.Target = func() (Target, error) { return target, nil }
		acquire(t, open(t, options), ask("job of "+plugin, "a"))
		target.Password = "wrong"
		if _, err := open(t, options).TryAcquire(t.Context(), ask("job", "a")); !isOnly(err, db.ErrRefused) {
			t.Errorf("%s: TryAcquire with a wrong password = %v; want ErrRefused", plugin, err)
		}
	}

	server.Exec(t, "CREATE USER pam@'%' IDENTIFIED VIA pam")
	t.Cleanup(func() { server.Exec(t, "DROP USER pam@'%'") })
	p.target.User = "pam"
	_, err := open(t, p.options()).TryAcquire(t.Context(), ask("job", "a"))
	if !isOnly(err, db.ErrRefused) || !strings.Contains(err.Error(), "dialog") {
		t.Errorf("TryAcquire by a plugin that we have not = %v; want ErrRefused and its name, dialog", err)
	}
}

func TestEncryption(t *testing.T) {
	ours, strangers := testserver.NewAuthority(t), testserver.NewAuthority(t)
	tomorrow := time.Now().Add(24 * time.Hour)
	serving := func(c testserver.Certificate) *testserver.MariaDB {
		return testserver.NewMariaDB(t, testserver.Options{Args: ours.Args(c)})
	}
	secure := serving(ours.Server(t, tomorrow, "127.0.0.1", "localhost"))
	misnamed := serving(ours.Server(t, tomorrow, "db.example"))
	expired := serving(ours.Server(t, time.Now().Add(-time.Hour), "127.0.0.1"))

	pool := func(a *testserver.Authority) *x509.CertPool {
		pem, err := os.ReadFile(a.File)
		if err != nil {
			t.Fatal(err)
		}
		p := x509.NewCertPool()
		p.AppendCertsFromPEM(pem)
		return p
	}
	pair := func(a *testserver.Authority) *tls.Certificate {
		c := a.Client(t)
		p, err := tls.LoadX509KeyPair(c.File, c.KeyFile)
		if err != nil {
			t.Fatal(err)
		}
		return &p
	}
	tests := []struct {
		name        string
		server      *testserver.MariaDB
		mode        string
		authorities *x509.CertPool
		certificate *tls.Certificate
		require     string // of the account
		want        string // "encrypted", "plain" or what the refusal says
	}{
		{"disabled", secure, TLSDisable, nil, nil, "", "plain"},
		{"unset", secure, "", nil, nil, "", "plain"},
		{"disabled and required by the account", secure, TLSDisable, nil, nil, "SSL", "LOCKGATE_DB_TLS"},
		{"preferred and possible", secure, TLSPrefer, nil, nil, "SSL", "encrypted"},
		{"preferred and impossible", server, TLSPrefer, nil, nil, "", "plain"},
		{"preferred, whoever it is", expired, TLSPrefer, nil, nil, "", "encrypted"},
		{"required", secure, TLSRequire, nil, nil, "", "encrypted"},
		{"required, whoever it is", misnamed, TLSRequire, nil, nil, "", "encrypted"},
		{"required and impossible", server, TLSRequire, nil, nil, "", "the server has no TLS, and LOCKGATE_DB_TLS asks for it"},

		{"verify-ca", secure, TLSVerifyCA, pool(ours), nil, "", "encrypted"},
		{"verify-ca does not look at names", misnamed, TLSVerifyCA, pool(ours), nil, "", "encrypted"},
		{"verify-ca of a stranger", secure, TLSVerifyCA, pool(strangers), nil, "", "not signed by an authority of LOCKGATE_DB_CA_FILE"},
		{"verify-ca by the system's authorities", secure, TLSVerifyCA, nil, nil, "", "not signed by an authority of LOCKGATE_DB_CA_FILE"},
		{"verify-ca of a certificate that has expired", expired, TLSVerifyCA, pool(ours), nil, "", "has expired or is not valid yet"},
		{"verify-ca and impossible", server, TLSVerifyCA, pool(ours), nil, "", "the server has no TLS"},

		{"verify-full", secure, TLSVerifyFull, pool(ours), nil, "", "encrypted"},
		{"verify-full of another host", misnamed, TLSVerifyFull, pool(ours), nil, "", "for another host than LOCKGATE_DB_URL names"},
		{"verify-full of a stranger", secure, TLSVerifyFull, pool(strangers), nil, "", "not signed by an authority of LOCKGATE_DB_CA_FILE"},
		{"verify-full by the system's authorities", secure, TLSVerifyFull, nil, nil, "", "not signed by an authority of LOCKGATE_DB_CA_FILE"},
		{"verify-full of a certificate that has expired", expired, TLSVerifyFull, pool(ours), nil, "", "has expired or is not valid yet"},
		{"verify-full and impossible", server, TLSVerifyFull, pool(ours), nil, "", "the server has no TLS"},

		{"a certificate of ours that the account requires", secure, TLSVerifyFull, pool(ours), pair(ours), "X509", "encrypted"},
		{"a certificate that the account requires, and none of ours", secure, TLSVerifyFull, pool(ours), nil, "X509", "LOCKGATE_DB_CERT_FILE"},
		{"a certificate of ours that the server does not trust", secure, TLSRequire, nil, pair(strangers), "", "LOCKGATE_DB_CERT_FILE"},
		{"a certificate of ours, by way of a preference", secure, TLSPrefer, nil, pair(ours), "X509", "encrypted"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			place := newPlace(t, tt.server)
			if tt.require != "" {
				tt.server.Exec(t, "ALTER USER "+testserver.Quote(place.target.User)+"@'%' REQUIRE "+tt.require)
			}
			f := place.forwarded(t)
			place.target.TLS, place.target.Authorities, place.target.Certificate = tt.mode, tt.authorities, tt.certificate
			store := open(t, place.options())
			store.db.SetMaxIdleConns(-1) // a second connection is checked like the first
			var err error
			for range 2 {
				if _, err = store.TryAcquire(t.Context(), ask("job", "a")); err != nil {
					break
				}
			}
			got := "encrypted"
			switch {
			case err != nil && isOnly(err, db.ErrRefused):
				got = err.Error()
			case err != nil:
				t.Fatalf("TryAcquire = %v; want %s", err, tt.want)
			case f.Count(testserver.Any) > 0:
				got = "plain"
			}
			if !strings.Contains(got, tt.want) {
				t.Errorf("TryAcquire is %s; want %s", got, tt.want)
			}
		})
	}
}

func TestANameIsCheckedAsItIsWritten(t *testing.T) {
	authority := testserver.NewAuthority(t)
	secure := testserver.NewMariaDB(t, testserver.Options{Args: authority.Args(authority.Server(t, time.Now().Add(time.Hour), "localhost"))})
	pem, err := os.ReadFile(authority.File)
	if err != nil {
		t.Fatal(err)
	}
	p := newPlace(t, secure)
	p.target.TLS, p.target.Authorities = TLSVerifyFull, x509.NewCertPool()
	p.target.Authorities.AppendCertsFromPEM(pem)
	_, port, err := net.SplitHostPort(p.target.Address)
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]error{"localhost": nil, "127.0.0.1": db.ErrRefused} {
		p.target.Address = net.JoinHostPort(host, port)
		_, err := open(t, p.options()).TryAcquire(t.Context(), ask("job", "a"))
		if want == nil && err != nil || want != nil && !isOnly(err, want) {
			t.Errorf("TryAcquire by the host %s of a certificate for localhost = %v; want %v", host, err, want)
		}
	}
}

func TestSessionSetUp(t *testing.T) {
	tests := []struct {
		wait time.Duration
		want string
	}{
		{0, "SET NAMES utf8mb4, autocommit = 1"},
		{time.Millisecond, "SET NAMES utf8mb4, autocommit = 1, innodb_lock_wait_timeout = 1"},
		{3 * time.Second, "SET NAMES utf8mb4, autocommit = 1, innodb_lock_wait_timeout = 3"},
		{3*time.Second + 1, "SET NAMES utf8mb4, autocommit = 1, innodb_lock_wait_timeout = 4"},
	}
	for _, tt := range tests {
		if got := setUpStatement(tt.wait); got != tt.want {
			t.Errorf("setUpStatement(%s) = %q; want %q", tt.wait, got, tt.want)
		}
	}
}

func TestServerThatRefusesTheLockWaitIsUsable(t *testing.T) {
	p := newPlace(t, server)
	f := p.forwarded(t)
	server.SetGlobal(t, "autocommit", "0")
	c := &connector{target: p.options().Target, setUp: setAlways + ", no_such_lock_wait_timeout = 1"}
	conn, err := c.Connect(t.Context())
	if err != nil {
		t.Fatalf("Connect = %v; want a connection", err)
	}
	defer conn.Close()
	if got := verbs(f); got != "SET, SET" {
		t.Errorf("statements %s; want SET, SET", got)
	}
	if last := f.Statements(testserver.Any)[1]; last.SQL != setAlways || last.Answer.Error != 0 {
		t.Errorf("the second SET is %+v; want %s, accepted", last, setAlways)
	}
}

func TestTokenOnlyGrows(t *testing.T) {
	p := newPlace(t, server)
	store := open(t, p.options())
	free := used(t, store, "job")

	// Ahead of the clock, as after a clock that was set back.
	ahead := free.Token + 1e9
	server.Exec(t, "UPDATE "+p.table()+" SET token = "+big.NewInt(int64(ahead)).String())
	lease := acquire(t, store, ask("job", "a"))
	if lease.Token != ahead+1 {
		t.Errorf("token = %d after %d; want the next", lease.Token, ahead)
	}
	release(t, store, lease)

	// Behind it, as after a restore that lost commits: no token is given twice.
	server.Exec(t, "UPDATE "+p.table()+" SET token = 1")
	if lease := acquire(t, store, ask("job", "b")); lease.Token < free.Token {
		t.Errorf("token = %d after a restore; want at least the %d of before", lease.Token, free.Token)
	}
}

// In the hour that the zone of the server leaves out in spring, times that
// pass through a zone cannot be written.
func TestMissingHourOfSpring(t *testing.T) {
	server.Exec(t,
		"INSERT INTO mysql.time_zone (Time_zone_id, Use_leap_seconds) VALUES (7001, 'N')",
		"INSERT INTO mysql.time_zone_name (Name, Time_zone_id) VALUES ('Lockgate/Spring', 7001)",
		"INSERT INTO mysql.time_zone_transition_type (Time_zone_id, Transition_type_id, `Offset`, Is_DST, Abbreviation)"+
			" VALUES (7001, 0, 3600, 0, 'CET'), (7001, 1, 7200, 1, 'CEST')",
		"INSERT INTO mysql.time_zone_transition (Time_zone_id, Transition_time, Transition_type_id)"+
			" VALUES (7001, 1698541200, 0), (7001, 1711846800, 1), (7001, 1729990800, 0)",
	)
	t.Cleanup(func() {
		for _, table := range []string{"time_zone", "time_zone_name", "time_zone_transition_type", "time_zone_transition"} {
			server.Exec(t, "DELETE FROM mysql."+table+" WHERE Time_zone_id = 7001")
		}
	})
	p := newPlace(t, server)
	store := open(t, p.options())
	used(t, store, "job")
	server.Exec(t, "UPDATE "+p.table()+" SET expires_at = '2024-03-30', acquired_at = '2024-03-30', renewed_at = '2024-03-30', token = 1")
	server.SetGlobal(t, "time_zone", "'Lockgate/Spring'")
	for _, mode := range []string{"STRICT_ALL_TABLES", ""} {
		server.SetGlobal(t, "sql_mode", testserver.Quote(mode))
		// 02:30 UTC on 31 March 2024; no such time on clocks of that zone.
		server.SetGlobal(t, "init_connect", "'SET timestamp = 1711852200'")
		var clock string
		admin := server.Admin()
		if err := admin.QueryRowContext(t.Context(), "SELECT CONVERT_TZ('2024-03-31 01:30:00', '+00:00', 'Lockgate/Spring')").Scan(&clock); err != nil || clock != "2024-03-31 03:30:00" {
			t.Fatalf("the zone says %q, %v; want the hour left out", clock, err)
		}
		there := open(t, p.options())
		lease := acquire(t, there, ask("job", "a"+mode))
		if want := uint64(1711852200000); lease.Token != want && mode != "" {
			t.Errorf("token = %d; want the frozen clock's %d", lease.Token, want)
		}
		renew(t, there, lease)
		held := new(db.HeldError)
		if _, err := there.TryAcquire(t.Context(), ask("job", "b")); !errors.As(err, &held) || held.Remaining != long {
			t.Errorf("TryAcquire = %v; want it held for another %s", err, long)
		}
		release(t, there, lease)
	}
}
