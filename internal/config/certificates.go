package config

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
)

// certificates fills in whom to trust and what to show, and returns what is
// wrong with that.
func (d Database) certificates(t *Target) (problems []string) {
	problem := func(format string, args ...any) {
		problems = append(problems, fmt.Sprintf(format, args...))
	}
	switch {
	case d.caFile == "":
	case !d.tls.verifies():
		problem("%s is set, but with %s=%s nobody checks the server's certificate; set %s to %s or %s, or unset %s",
			varCAFile, varTLS, d.tls, varTLS, TLSVerifyFull, TLSVerifyCA, varCAFile)
	default:
		pool, err := readAuthorities(d.caFile)
		if err != nil {
			problem("%s (%s) %v", varCAFile, d.caFile, err)
		}
		t.Authorities = pool
	}
	switch {
	case d.certFile == "" && d.keyFile == "":
	case d.keyFile == "":
		problem("%s is set without %s; set both, or none", varCertFile, varKeyFile)
	case d.certFile == "":
		problem("%s is set without %s; set both, or none", varKeyFile, varCertFile)
	case d.tls == TLSDisable:
		problem("%s is set, but with %s=%s there is nobody to show it to; set %s to another mode, or unset %s and %s",
			varCertFile, varTLS, d.tls, varTLS, varCertFile, varKeyFile)
	default:
		pair, why := d.readPair()
		if why != "" {
			problems = append(problems, why)
		}
		t.Certificate = pair
	}
	return problems
}

// readAuthorities reads certificates, of which each must be one. The error
// continues a sentence whose subject is the file.
func readAuthorities(name string) (*x509.CertPool, error) {
	rest, err := readFile(name, maxPEMBytes)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	found := false
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("has a certificate that is malformed: %w", err)
		}
		pool.AddCert(certificate)
		found = true
	}
	if !found {
		return nil, errors.New("has no certificate in it; write PEM, which begins with -----BEGIN CERTIFICATE-----")
	}
	return pool, nil
}

// readPair reads our certificate and its key. Who renews them writes one after
// the other, or turns a link around between our two looks, so two that do not fit
// are read once more.
func (d Database) readPair() (pair *tls.Certificate, problem string) {
	for range 2 {
		certificate, err := readFile(d.certFile, maxPEMBytes)
		if err == nil {
			err = hasPEM(certificate, "CERTIFICATE")
		}
		if err != nil {
			return nil, fmt.Sprintf("%s (%s) %v", varCertFile, d.certFile, err)
		}
		key, err := readFile(d.keyFile, maxPEMBytes)
		if err == nil {
			err = hasPEM(key, "PRIVATE KEY")
		}
		if err != nil {
			return nil, fmt.Sprintf("%s (%s) %v", varKeyFile, d.keyFile, err)
		}
		both, err := tls.X509KeyPair(certificate, key)
		if err == nil {
			return &both, ""
		}
		// The error of the library tells kinds of keys apart, and nothing of them.
		problem = fmt.Sprintf("%s (%s) is not the key of %s (%s): %v", varKeyFile, d.keyFile, varCertFile, d.certFile, err)
	}
	return nil, problem
}

// hasPEM says what is wrong with a file that should have a block of that kind.
func hasPEM(content []byte, kind string) error {
	for rest := content; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return fmt.Errorf("has no %s in it; write PEM, which begins with -----BEGIN %s-----", strings.ToLower(kind), kind)
		}
		switch {
		case block.Type == "ENCRYPTED PRIVATE KEY", block.Headers["DEK-Info"] != "":
			return errors.New("has a key with a passphrase, which nobody could type; write the key without it")
		case strings.HasSuffix(block.Type, kind): // there are RSA PRIVATE KEYs, too
			return nil
		}
	}
}
