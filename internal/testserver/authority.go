package testserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority signs the certificates of one test. All that it makes is in a folder
// of the test, and nobody else trusts it.
type Authority struct {
	// File has its certificate.
	File string

	dir         string
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// Certificate is where a certificate and its key are, as PEM.
type Certificate struct{ File, KeyFile string }

// NewAuthority makes an authority that only this test knows.
func NewAuthority(tb testing.TB) *Authority {
	tb.Helper()
	a := &Authority{dir: tb.TempDir()}
	a.key = newKey(tb)
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "authority of a lockgate test " + rand.Text()}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	a.certificate = template
	a.certificate = a.sign(tb, template, a.key)
	a.File = a.write(tb, "CERTIFICATE", a.certificate.Raw)
	return a
}

// Server makes a certificate for a server of those names and IP addresses, valid
// until then.
func (a *Authority) Server(tb testing.TB, until time.Time, hosts ...string) Certificate {
	tb.Helper()
	template := &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, NotAfter: until}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	return a.issue(tb, "server", template)
}

// Client makes a certificate for a client.
func (a *Authority) Client(tb testing.TB) Certificate {
	tb.Helper()
	return a.issue(tb, "client", &x509.Certificate{
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, NotAfter: time.Now().Add(24 * time.Hour),
	})
}

// Args are what has a MariaDB server show that certificate, and trust clients of
// this authority.
func (a *Authority) Args(c Certificate) []string {
	return []string{"--ssl-ca=" + a.File, "--ssl-cert=" + c.File, "--ssl-key=" + c.KeyFile}
}

func (a *Authority) issue(tb testing.TB, name string, template *x509.Certificate) Certificate {
	tb.Helper()
	template.Subject = pkix.Name{CommonName: name + " of a lockgate test"}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.NotBefore = time.Now().Add(-48 * time.Hour)
	key := newKey(tb)
	certificate := a.sign(tb, template, key)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	return Certificate{File: a.write(tb, "CERTIFICATE", certificate.Raw), KeyFile: a.write(tb, "PRIVATE KEY", der)}
}

// sign makes a certificate of a template, for a key.
func (a *Authority) sign(tb testing.TB, template *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	tb.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		tb.Fatal(err)
	}
	template.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, &key.PublicKey, a.key)
	if err != nil {
		tb.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		tb.Fatal(err)
	}
	return certificate
}

// write keeps a block where only we, and so the servers of this test, can read it.
func (a *Authority) write(tb testing.TB, kind string, der []byte) string {
	tb.Helper()
	path := filepath.Join(a.dir, rand.Text()+".pem")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}

func newKey(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}
