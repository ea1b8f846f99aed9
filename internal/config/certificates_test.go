package config

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// pemPair makes a certificate and its key, as PEM.
func pemPair(t *testing.T) (certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	encode := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return encode("CERTIFICATE", signed), encode("PRIVATE KEY", der)
}

func TestCertificatesAreCheckedAtTheStart(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	certPEM, keyPEM := pemPair(t)
	otherPEM, _ := pemPair(t)
	cert, key := file("cert", certPEM), file("key", keyPEM)
	ca := file("ca", "what this is for\n"+certPEM+otherPEM)
	missing, text, other := filepath.Join(dir, "missing"), file("text", "not PEM"), file("other", otherPEM)
	broken := file("broken", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
	locked := file("locked", "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n")
	for _, c := range []struct {
		name     string
		environ  []string
		problems [][]string // nil: fine
	}{
		{"none", []string{"TLS=verify-full"}, nil},
		{"an authority", []string{"TLS=verify-ca", "CA_FILE=" + ca}, nil},
		{"all three", []string{"TLS=verify-full", "CA_FILE=" + ca, "CERT_FILE=" + cert, "KEY_FILE=" + key}, nil},
		{"ours alone, where the server is not checked", []string{"CERT_FILE=" + cert, "KEY_FILE=" + key}, nil},
		{"both in one file", []string{"CERT_FILE=" + file("both", certPEM+keyPEM), "KEY_FILE=" + file("both", certPEM+keyPEM)}, nil},

		{"an authority by default", []string{"CA_FILE=" + ca}, [][]string{{"DB_CA_FILE is set", "LOCKGATE_DB_TLS=prefer", "verify-full"}}},
		{"an authority and require", []string{"TLS=require", "CA_FILE=" + ca}, [][]string{{"DB_CA_FILE is set", "LOCKGATE_DB_TLS=require", "verify-full"}}},
		{"an authority and disable", []string{"TLS=disable", "CA_FILE=" + ca}, [][]string{{"DB_CA_FILE is set", "LOCKGATE_DB_TLS=disable", "verify-full"}}},
		{"a certificate and disable", []string{"TLS=disable", "CERT_FILE=" + cert, "KEY_FILE=" + key}, [][]string{{"DB_CERT_FILE is set", "LOCKGATE_DB_TLS=disable"}}},
		{"a certificate without its key", []string{"CERT_FILE=" + cert}, [][]string{{"DB_CERT_FILE is set without LOCKGATE_DB_KEY_FILE"}}},
		{"a key without its certificate", []string{"KEY_FILE=" + key}, [][]string{{"DB_KEY_FILE is set without LOCKGATE_DB_CERT_FILE"}}},

		{"a missing authority", []string{"TLS=verify-ca", "CA_FILE=" + missing}, [][]string{{"DB_CA_FILE (" + missing + ") cannot be read: no such file"}}},
		{"a folder of authorities", []string{"TLS=verify-ca", "CA_FILE=" + dir}, [][]string{{"DB_CA_FILE (" + dir + ") is not a regular file"}}},
		{"an authority that is no PEM", []string{"TLS=verify-ca", "CA_FILE=" + text}, [][]string{{"DB_CA_FILE (" + text + ") has no certificate in it"}}},
		{"an authority that is a key", []string{"TLS=verify-ca", "CA_FILE=" + key}, [][]string{{"DB_CA_FILE (" + key + ") has no certificate in it"}}},
		{"an authority that is malformed", []string{"TLS=verify-ca", "CA_FILE=" + broken}, [][]string{{"DB_CA_FILE (" + broken + ") has a certificate that is malformed"}}},
		{"a missing certificate", []string{"CERT_FILE=" + missing, "KEY_FILE=" + key}, [][]string{{"DB_CERT_FILE (" + missing + ") cannot be read"}}},
		{"a missing key", []string{"CERT_FILE=" + cert, "KEY_FILE=" + missing}, [][]string{{"DB_KEY_FILE (" + missing + ") cannot be read"}}},
		{"a certificate that is no PEM", []string{"CERT_FILE=" + text, "KEY_FILE=" + key}, [][]string{{"DB_CERT_FILE (" + text + ") has no certificate in it"}}},
		{"a key that is no PEM", []string{"CERT_FILE=" + cert, "KEY_FILE=" + text}, [][]string{{"DB_KEY_FILE (" + text + ") has no private key in it"}}},
		{"a key with a passphrase", []string{"CERT_FILE=" + cert, "KEY_FILE=" + locked}, [][]string{{"DB_KEY_FILE (" + locked + ") has a key with a passphrase"}}},
		{"the two turned around", []string{"CERT_FILE=" + key, "KEY_FILE=" + cert}, [][]string{{"DB_CERT_FILE (" + key + ") has no certificate in it"}}},
		{"another's key", []string{"CERT_FILE=" + other, "KEY_FILE=" + key}, [][]string{{"DB_KEY_FILE (" + key + ") is not the key of LOCKGATE_DB_CERT_FILE (" + other + ")"}}},
		{"several at once", []string{"TLS=require", "CA_FILE=" + ca, "CERT_FILE=" + cert}, [][]string{{"DB_CA_FILE is set"}, {"DB_CERT_FILE is set without"}}},
		{"a mode that is misspelled", []string{"TLS=verify", "CA_FILE=" + ca}, [][]string{{"DB_TLS", "verify-ca", "verify-full"}}},

		{"an authority for SQLite", []string{"URL=sqlite:///a", "CA_FILE=" + ca}, [][]string{{"DB_CA_FILE means nothing to the SQLite file"}}},
		{"a certificate for SQLite", []string{"URL=sqlite:///a", "CERT_FILE=" + cert, "KEY_FILE=" + key}, [][]string{{"DB_CERT_FILE means nothing"}, {"DB_KEY_FILE means nothing"}}},
		{"a check of SQLite", []string{"URL=sqlite:///a", "TLS=verify-full"}, [][]string{{"DB_TLS=verify-full means nothing"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			environ := minimal()
			for _, kv := range c.environ {
				environ = append(environ, dbPrefix+kv)
			}
			if c.problems == nil {
				mustLoad(t, Sidecar, environ...)
				return
			}
			got := problems(t, Sidecar, environ...)
			if len(got) != len(c.problems) {
				t.Fatalf("problems = %q; want %q", got, c.problems)
			}
			for i, words := range c.problems {
				for _, w := range words {
					if !strings.Contains(got[i], w) {
						t.Errorf("problem = %q; want it to contain %q", got[i], w)
					}
				}
				if strings.Contains(got[i], strings.Split(keyPEM, "\n")[1]) {
					t.Errorf("problem = %q; that shows the key", got[i])
				}
			}
		})
	}
}

func TestCertificatesAreReadAgain(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(path(name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	firstCert, firstKey := pemPair(t)
	secondCert, secondKey := pemPair(t)
	write("ca", firstCert)
	write("cert", firstCert)
	write("key", firstKey)
	d := mustLoad(t, Run, minimal("LOCKGATE_DB_TLS=verify-full", "LOCKGATE_DB_CA_FILE="+path("ca"),
		"LOCKGATE_DB_CERT_FILE="+path("cert"), "LOCKGATE_DB_KEY_FILE="+path("key"))...).Database
	first, err := d.Resolve()
	if err != nil || first.Authorities == nil || first.Certificate == nil || first.TLS != TLSVerifyFull {
		t.Fatalf("Resolve = %v, %v; want both", first, err)
	}
	write("ca", secondCert)
	write("cert", secondCert)
	if _, err := d.Resolve(); err == nil || !strings.Contains(err.Error(), "LOCKGATE_DB_KEY_FILE") {
		t.Errorf("Resolve between the two files = %v; want that the key is not the certificate's", err)
	}
	write("key", secondKey)
	second, err := d.Resolve()
	if err != nil || second.Authorities.Equal(first.Authorities) || bytes.Equal(second.Certificate.Certificate[0], first.Certificate.Certificate[0]) {
		t.Errorf("Resolve after the change, %v; want the new authority and certificate", err)
	}
	if err := os.Remove(path("ca")); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Resolve(); err == nil || !strings.Contains(err.Error(), "LOCKGATE_DB_CA_FILE") {
		t.Errorf("Resolve without its file = %v; want an error that names LOCKGATE_DB_CA_FILE", err)
	}
}
