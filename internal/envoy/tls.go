package envoy

import (
	"net/netip"
	"path"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
)

// TLS is how an Envoy and its meshd know each other: by files on the Envoy's machine, in PEM. The zero TLS is plain text.
type TLS struct {
	CA        string // of the authorities that sign meshd's certificate
	Cert, Key string // the Envoy's own, where meshd wants one
	// ServerName must be in meshd's certificate; by default it is that host of XDS.
	ServerName string
	// Secrets is the folder of what [TLS.Files] makes. Without one, Envoy reads its certificates once, when it starts.
	Secrets string
}

// The names of secrets, which are those of their files.
const (
	authoritySecret   = "meshd-authority"
	certificateSecret = "meshd-certificate"
)

// Files are what the folder of secrets holds, by name of the file: where the certificates are. An Envoy that is told so by a file of
// its own reads these again when they are replaced, and the ones that a bootstrap names it does not.
func (t TLS) Files() map[string]*tlsv3.Secret {
	if t.Secrets == "" {
		return nil
	}
	files := map[string]*tlsv3.Secret{secretFile(authoritySecret): {
		Name: authoritySecret, Type: &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: fromFile(t.CA)}},
	}}
	if t.Cert != "" {
		files[secretFile(certificateSecret)] = &tlsv3.Secret{Name: certificateSecret, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: t.certificate()}}
	}
	return files
}

func secretFile(name string) string { return name + ".json" }

func (t TLS) certificate() *tlsv3.TlsCertificate {
	return &tlsv3.TlsCertificate{CertificateChain: fromFile(t.Cert), PrivateKey: fromFile(t.Key)}
}

func fromFile(name string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: name}}
}

func (t TLS) secret(name string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: &corev3.ConfigSource{
		ResourceApiVersion:    corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_PathConfigSource{PathConfigSource: &corev3.PathConfigSource{Path: path.Join(t.Secrets, secretFile(name))}},
	}}
}

// socket is how the Envoy connects to replicas; nil is in plain text.
func (t TLS) socket(replicas []HostPort) *corev3.TransportSocket {
	if t.CA == "" {
		return nil
	}
	// Whoever has a certificate of the authorities, other nodes as well, must not pass for meshd: its name decides.
	names := []string{t.ServerName}
	if t.ServerName == "" {
		names = nil
		for _, r := range replicas {
			names = append(names, r.Host)
		}
	}
	validation := &tlsv3.CertificateValidationContext{}
	for _, name := range names {
		kind := tlsv3.SubjectAltNameMatcher_DNS
		if isIP(name) {
			kind = tlsv3.SubjectAltNameMatcher_IP_ADDRESS
		}
		validation.MatchTypedSubjectAltNames = append(validation.MatchTypedSubjectAltNames, &tlsv3.SubjectAltNameMatcher{
			SanType: kind, Matcher: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: name}},
		})
	}
	common := &tlsv3.CommonTlsContext{
		AlpnProtocols: []string{"h2"},
		TlsParams:     &tlsv3.TlsParameters{TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_2},
	}
	if t.Secrets == "" {
		validation.TrustedCa = fromFile(t.CA)
		common.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: validation}
	} else {
		common.ValidationContextType = &tlsv3.CommonTlsContext_CombinedValidationContext{CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
			DefaultValidationContext: validation, ValidationContextSdsSecretConfig: t.secret(authoritySecret),
		}}
	}
	switch {
	case t.Cert == "":
	case t.Secrets == "":
		common.TlsCertificates = []*tlsv3.TlsCertificate{t.certificate()}
	default:
		common.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{t.secret(certificateSecret)}
	}
	socket := &tlsv3.UpstreamTlsContext{CommonTlsContext: common}
	if len(names) == 1 && !isIP(names[0]) { // meshd does not look at it; what stands before it may
		socket.Sni = names[0]
	}
	return &corev3.TransportSocket{Name: "envoy.transport_sockets.tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: pack(socket)}}
}

func isIP(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil
}
