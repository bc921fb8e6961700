package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// tlsFlags are the flags that say by which certificates meshd's xDS is reached; none is in plain text.
type tlsFlags struct{ ca, cert, key, serverName string }

func (f *tlsFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.ca, "xds-ca-file", "", "PEM `FILE` of the authorities that sign meshd's certificate; by this the connection is TLS")
	flags.StringVar(&f.cert, "xds-cert-file", "", "PEM `FILE` of the node's own certificate, where meshd wants one")
	flags.StringVar(&f.key, "xds-key-file", "", "PEM `FILE` of the private key of that certificate")
	flags.StringVar(&f.serverName, "xds-server-name", "", "the `NAME` that is in meshd's certificate (default: the host of --xds)")
}

// check reports flags that do not go together.
func (f *tlsFlags) check() error {
	switch {
	case f.ca == "" && (f.cert != "" || f.key != "" || f.serverName != ""):
		return errors.New("without --xds-ca-file the connection is in plain text; say by it who signs meshd's certificate, or leave out --xds-cert-file, --xds-key-file and --xds-server-name")
	case f.cert != "" && f.key == "":
		return errors.New("--xds-cert-file is of no use without its key: add --xds-key-file")
	case f.key != "" && f.cert == "":
		return errors.New("--xds-key-file is of no use without its certificate: add --xds-cert-file")
	}
	return nil
}

// credentials reads the files, for a connection from here.
func (f *tlsFlags) credentials() (credentials.TransportCredentials, error) {
	if f.ca == "" {
		return insecure.NewCredentials(), nil
	}
	authorities, err := os.ReadFile(f.ca)
	if err != nil {
		return nil, fmt.Errorf("--xds-ca-file: %w", err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: f.serverName, RootCAs: x509.NewCertPool()}
	if !config.RootCAs.AppendCertsFromPEM(authorities) {
		return nil, fmt.Errorf("--xds-ca-file: there is no certificate in %s", f.ca)
	}
	if f.cert != "" {
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return nil, fmt.Errorf("--xds-cert-file, --xds-key-file: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return credentials.NewTLS(config), nil
}
