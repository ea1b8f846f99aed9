package e2e

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lockgate/lockgate/internal/testserver"
)

// allPrintable is every printable character of ASCII.
func allPrintable() string {
	var b strings.Builder
	for c := byte(' '); c <= '~'; c++ {
		b.WriteByte(c)
	}
	return b.String()
}

// encodeAll percent-encodes every byte.
func encodeAll(s string) string {
	var b strings.Builder
	for i := range len(s) {
		fmt.Fprintf(&b, "%%%02X", s[i])
	}
	return b.String()
}

// encodeSome percent-encodes only what the README says must be, and blanks.
func encodeSome(s string) string {
	return strings.NewReplacer("%", "%25", "/", "%2F", "?", "%3F", "#", "%23", "@", "%40", ":", "%3A", " ", "%20").Replace(s)
}

// wantNoSecret checks that nothing shows the secret, as it is or as a log, a
// URL, a shell or Go would write it.
func wantNoSecret(t *testing.T, text, secret string) {
	t.Helper()
	quoted := strconv.Quote(secret)
	asJSON, err := json.Marshal(secret)
	must(t, err)
	for _, form := range []string{
		secret, encodeAll(secret), strings.ToLower(encodeAll(secret)), encodeSome(secret), url.QueryEscape(secret), url.PathEscape(secret),
		quoted[1 : len(quoted)-1], string(asJSON[1 : len(asJSON)-1]), fmt.Sprintf("%x", secret), strings.ReplaceAll(secret, "'", `'\''`),
	} {
		if strings.Contains(text, form) {
			t.Errorf("said %s; that shows the secret as %s", text, form)
		}
	}
}

func TestAnyPrintableUserAndPasswordWorkInEveryWayAndAreNeverShown(t *testing.T) {
	t.Parallel()
	server := mariadb(t)
	punctuation := "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
	for i, account := range []struct{ name, user, password string }{
		{"all of ASCII", "u " + punctuation + " v", allPrintable() + "."}, // a blank first
		{"blanks at both ends", "b l", "  two each  "},
		{"accents and an emoji", "Zoë Åse ñandú", "pä55wörd é ß 日本 🔒"},
		{"what looks encoded", "a%40b+c", "%41%2f+%zz&amp;=%%"},
		{"what looks like a place in a text", "${HOME}", "$(id) ${PATH} %s%d%!v(MISSING) \\n\\0 `date` {{.}}"},
		{"what looks like a URL", "mysql://root", "x@h:1/db?tls=false#mysql://u:p@h/d"},
		{"letters and digits", "abcdefghijklmnopqrstuvwxyz", "ABCXYZ0123456789abcxyz"},
	} {
		t.Run(account.name, func(t *testing.T) {
			t.Parallel()
			schema := server.NewDatabase(t)
			user := account.user + strconv.Itoa(i)
			server.NewUser(t, testserver.User{Name: user, Password: account.password, Grants: []string{"ALL ON " + schema + ".*"}})
			files := 0
			file := func(content string) string {
				files++
				path := filepath.Join(t.TempDir(), "secret"+strconv.Itoa(files))
				must(t, os.WriteFile(path, []byte(content), 0o600))
				return path
			}
			place := server.Address() + "/" + schema
			// of is how an account is said, with the right password or another.
			of := map[string]func(password string) settings{
				"URL, all encoded": func(p string) settings {
					return settings{"DB_URL": "mysql://" + encodeAll(user) + ":" + encodeAll(p) + "@" + place}
				},
				"URL, what must be encoded": func(p string) settings {
					return settings{"DB_URL": "mysql://" + encodeSome(user) + ":" + encodeSome(p) + "@" + place}
				},
				"URL in a file": func(p string) settings {
					return settings{"DB_URL_FILE": file("mysql://" + encodeSome(user) + ":" + encodeAll(p) + "@" + place + "\n")}
				},
				"variables": func(p string) settings {
					return settings{"DB_URL": "mysql://" + place, "DB_USER": user, "DB_PASSWORD": p}
				},
				"password in a file": func(p string) settings {
					return settings{"DB_URL": "mysql://" + place, "DB_USER": user, "DB_PASSWORD_FILE": file(p)}
				},
				"password in a file that ends in a newline": func(p string) settings {
					return settings{"DB_URL": "mysql://" + encodeAll(user) + "@" + place, "DB_PASSWORD_FILE": file(p + "\n")}
				},
			}
			for name, say := range of {
				t.Run(name, func(t *testing.T) {
					try := func(password string, s settings, code int, says string) {
						t.Helper()
						s = short("").with(calm()).with(s)
						if s["DB_URL"] == "" {
							delete(s, "DB_URL")
						}
						p := startRun(t, s, "env") // CMD sees nothing of it either
						p.wantExit(code)
						said := p.said()
						if !strings.Contains(said, says) {
							t.Errorf("said %s; want %q in it", said, says)
						}
						wantNoSecret(t, said, password)
						for command, code := range map[string]int{"status": code, "config": 0} {
							p := start(t, s, command)
							p.wantExit(code)
							wantNoSecret(t, p.said(), password)
						}
					}
					try(account.password, say(account.password), 0, "LOCKGATE_TOKEN=")

					for _, wrong := range []string{account.password + "x", strings.ToLower(account.password) + " "} {
						try(wrong, say(wrong), 69, "Access denied")
					}
				})
			}
		})
	}
}

// mounted is a volume as kubelet keeps it: names lead through a link that is
// turned around by rename, so that all files change at the same moment.
type mounted struct {
	dir     string
	version int
}

func mount(t *testing.T, files map[string]string) *mounted {
	t.Helper()
	m := &mounted{dir: t.TempDir()}
	m.update(t, files)
	for name := range files {
		must(t, os.Symlink(filepath.Join("..data", name), m.file(name)))
	}
	return m
}

func (m *mounted) file(name string) string { return filepath.Join(m.dir, name) }

func (m *mounted) update(t *testing.T, files map[string]string) {
	t.Helper()
	m.version++
	version := fmt.Sprintf("..version_%d", m.version)
	must(t, os.Mkdir(filepath.Join(m.dir, version), 0o755))
	for name, content := range files {
		must(t, os.WriteFile(filepath.Join(m.dir, version, name), []byte(content), 0o600))
	}
	link := filepath.Join(m.dir, "..data_tmp")
	must(t, os.Symlink(version, link))
	must(t, os.Rename(link, filepath.Join(m.dir, "..data")))
	if m.version > 1 {
		must(t, os.RemoveAll(filepath.Join(m.dir, fmt.Sprintf("..version_%d", m.version-1))))
	}
}

func TestAPasswordThatIsRotatedInMidHoldCostsNothing(t *testing.T) {
	t.Parallel()
	server := mariadb(t)
	ways := map[string]func(user, place, password string) (variable, content string, more settings){
		"password file": func(user, place, password string) (string, string, settings) {
			return "DB_PASSWORD_FILE", password + "\n", settings{"DB_URL": "mysql://" + user + "@" + place}
		},
		"URL file": func(user, place, password string) (string, string, settings) {
			return "DB_URL_FILE", "mysql://" + user + ":" + password + "@" + place + "\n", settings{}
		},
	}
	for name, way := range ways {
		for _, first := range []string{"server", "file"} {
			t.Run(name+", the "+first+" first", func(t *testing.T) {
				t.Parallel()
				schema := server.NewDatabase(t)
				user := "rotated_" + schema
				const before, after = "old-Secret-1", "new-Secret-2"
				server.NewUser(t, testserver.User{Name: user, Password: before, Grants: []string{"ALL ON " + schema + ".*"}})
				variable, content, more := way(user, server.Address()+"/"+schema, before)
				volume := mount(t, map[string]string{"value": content})
				s := patient("").with(settings{"TTL": "1m"}).with(more).with(settings{variable: volume.file("value")})
				if more["DB_URL"] == "" {
					delete(s, "DB_URL")
				}
				at := newStage(t)
				p := at.run(t, s)
				token := tokenIn(t, at.witness())

				_, content, _ = way(user, server.Address()+"/"+schema, after)
				changeServer := func() {
					server.Exec(t, "ALTER USER "+testserver.Quote(user)+"@'%' IDENTIFIED BY "+testserver.Quote(after))
				}
				changeFile := func() { volume.update(t, map[string]string{"value": content}) }
				steps := []func(){changeServer, changeFile}
				if first == "file" {
					steps = []func(){changeFile, changeServer}
				}
				steps[0]()
				server.Exec(t, "KILL USER "+testserver.Quote(user))
				p.awaitOutput("Access denied") // the gap that a rotation has
				steps[1]()
				awaitRenewal(t, server, schema)
				touch(t, at.curtain())
				p.wantExit(0)
				wantReleased(t, server, schema, token)
				for _, secret := range []string{before, after} {
					wantNoSecret(t, p.said(), secret)
				}
			})
		}
	}
}

// awaitRenewal waits for a renewal that began after this call.
func awaitRenewal(t *testing.T, server *testserver.MariaDB, schema string) {
	t.Helper()
	var now string
	must(t, server.Admin().QueryRowContext(inTime(t), "SELECT UTC_TIMESTAMP(6)").Scan(&now))
	await(t, "the lease is renewed", func() bool {
		var renewed bool
		must(t, server.Admin().QueryRowContext(inTime(t), "SELECT renewed_at > ? FROM "+schema+".lockgate_locks", now).Scan(&renewed))
		return renewed
	})
}

// wantReleased checks that the only lock was released by the lease with that
// token, and never changed hands.
func wantReleased(t *testing.T, server *testserver.MariaDB, schema string, token uint64) {
	t.Helper()
	var got uint64
	var released bool
	must(t, server.Admin().QueryRowContext(inTime(t), "SELECT token, released_at IS NOT NULL FROM "+schema+".lockgate_locks").Scan(&got, &released))
	if got != token || !released {
		t.Errorf("the row has token %d, released %t; want %d, released", got, released, token)
	}
}

func TestCertificatesThatAreRotatedInMidHoldCostNothing(t *testing.T) {
	t.Parallel()
	read := func(path string) string {
		t.Helper()
		content, err := os.ReadFile(path)
		must(t, err)
		return string(content)
	}
	tomorrow := time.Now().Add(24 * time.Hour)
	oldAuthority, newAuthority := testserver.NewAuthority(t), testserver.NewAuthority(t)
	// The server reads its files again when it is told to.
	serving := t.TempDir()
	at := testserver.Certificate{File: filepath.Join(serving, "cert"), KeyFile: filepath.Join(serving, "key")}
	install := func(a *testserver.Authority, trusted string) {
		t.Helper()
		c := a.Server(t, tomorrow, "127.0.0.1")
		for path, content := range map[string]string{at.File: read(c.File), at.KeyFile: read(c.KeyFile), filepath.Join(serving, "ca"): trusted} {
			must(t, os.WriteFile(path, []byte(content), 0o600))
		}
	}
	install(oldAuthority, read(oldAuthority.File))
	server := testserver.NewMariaDB(t, testserver.Options{Args: []string{
		"--ssl-ca=" + filepath.Join(serving, "ca"), "--ssl-cert=" + at.File, "--ssl-key=" + at.KeyFile,
	}})
	schema := server.NewDatabase(t)
	server.NewUser(t, testserver.User{Name: "certified", Password: password, Require: "X509", Grants: []string{"ALL ON " + schema + ".*"}})

	files := func(a *testserver.Authority) map[string]string {
		ours := a.Client(t)
		return map[string]string{"ca": read(a.File), "cert": read(ours.File), "key": read(ours.KeyFile)}
	}
	volume := mount(t, files(oldAuthority))
	stage := newStage(t)
	p := stage.run(t, patient("mysql://certified:"+password+"@"+server.Address()+"/"+schema).with(settings{
		"TTL": "1m", "DB_TLS": "verify-full",
		"DB_CA_FILE": volume.file("ca"), "DB_CERT_FILE": volume.file("cert"), "DB_KEY_FILE": volume.file("key"),
	}))
	token := tokenIn(t, stage.witness())

	install(newAuthority, read(newAuthority.File))
	server.Exec(t, "FLUSH SSL", "KILL USER certified")
	p.awaitOutput("LOCKGATE_DB_CA_FILE") // the gap
	must(t, os.Rename(volume.file("..data"), volume.file("..away")))
	p.awaitOutput("LOCKGATE_DB_CA_FILE (" + volume.file("ca") + ") cannot be read") // a volume that is not there for a moment
	must(t, os.Rename(volume.file("..away"), volume.file("..data")))
	volume.update(t, files(newAuthority))
	awaitRenewal(t, server, schema)
	touch(t, stage.curtain())
	p.wantExit(0)
	wantReleased(t, server, schema, token)
	wantSaid(t, p.said())
}
