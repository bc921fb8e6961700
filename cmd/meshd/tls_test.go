package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// certify is a command of scripts: it writes the files ca.pem, and NAME.pem and NAME.key for each name, which are for 127.0.0.1 as well.
func certify(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 2, "certify FOLDER NAME...")
	dir := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(dir, 0o755))
	template := func(name string) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(1000 * time.Hour),
		}
	}
	write := func(name, kind string, der []byte) {
		ts.Check(os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	}
	authority := template("an authority")
	authority.IsCA, authority.BasicConstraintsValid, authority.KeyUsage = true, true, x509.KeyUsageCertSign
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ts.Check(err)
	der, err := x509.CreateCertificate(rand.Reader, authority, authority, &signer.PublicKey, signer)
	ts.Check(err)
	write("ca.pem", "CERTIFICATE", der)
	for _, name := range args[1:] {
		c := template(name)
		c.DNSNames, c.IPAddresses = []string{name}, []net.IP{net.IPv4(127, 0, 0, 1)}
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		ts.Check(err)
		der, err := x509.CreateCertificate(rand.Reader, c, authority, &key.PublicKey, signer)
		ts.Check(err)
		secret, err := x509.MarshalPKCS8PrivateKey(key)
		ts.Check(err)
		write(name+".pem", "CERTIFICATE", der)
		write(name+".key", "PRIVATE KEY", secret)
	}
}

func TestFlagsOfCertificatesGoTogether(t *testing.T) {
	for _, f := range []tlsFlags{{}, {ca: "ca"}, {ca: "ca", serverName: "n"}, {ca: "ca", cert: "c", key: "k"}} {
		if err := f.check(); err != nil {
			t.Errorf("%+v: %v", f, err)
		}
	}
	for _, f := range []tlsFlags{{cert: "c", key: "k"}, {serverName: "n"}, {ca: "ca", cert: "c"}, {ca: "ca", key: "k"}} {
		if err := f.check(); err == nil {
			t.Errorf("%+v is taken", f)
		}
	}
	if _, err := (&tlsFlags{ca: "none.pem"}).credentials(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}
