package envoy

import (
	"maps"
	"slices"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
)

// upstreamTLS is how a bootstrap connects to meshd; nil is in plain text.
func upstreamTLS(t *testing.T, by TLS, xds ...HostPort) *tlsv3.UpstreamTlsContext {
	t.Helper()
	c := bootstrapOf(t, Bootstrap{Node: &corev3.Node{Id: "web-1"}, XDS: xds, TLS: by}).GetStaticResources().GetClusters()[0]
	if c.GetTransportSocket() == nil {
		return nil
	}
	m := &tlsv3.UpstreamTlsContext{}
	if err := c.GetTransportSocket().GetTypedConfig().UnmarshalTo(m); err != nil {
		t.Fatal(err)
	}
	if err := m.ValidateAll(); err != nil {
		t.Error(err)
	}
	return m
}

func TestBootstrapIsInPlainTextUnlessThereIsAnAuthority(t *testing.T) {
	if m := upstreamTLS(t, TLS{}, here...); m != nil {
		t.Errorf("%v", m)
	}
}

// TestBootstrapTakesOnlyMeshd shows that the name in the certificate counts, and not only who has signed it.
func TestBootstrapTakesOnlyMeshd(t *testing.T) {
	const dns, ip = tlsv3.SubjectAltNameMatcher_DNS, tlsv3.SubjectAltNameMatcher_IP_ADDRESS
	type name struct {
		Kind tlsv3.SubjectAltNameMatcher_SanType
		Name string
	}
	a, b, one := HostPort{"a.example.net", 443}, HostPort{"b.example.net", 443}, HostPort{"192.0.2.1", 15010}
	for _, tt := range []struct {
		name   string
		server string
		xds    []HostPort
		want   []name
		sni    string
	}{
		{"one name", "", []HostPort{a}, []name{{dns, "a.example.net"}}, "a.example.net"},
		{"one address", "", []HostPort{one}, []name{{ip, "192.0.2.1"}}, ""},
		{"several", "", []HostPort{a, b, one}, []name{{dns, "a.example.net"}, {dns, "b.example.net"}, {ip, "192.0.2.1"}}, ""},
		{"a name that is said", "meshd.example.net", []HostPort{a, one}, []name{{dns, "meshd.example.net"}}, "meshd.example.net"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := upstreamTLS(t, TLS{CA: "/ca.pem", ServerName: tt.server}, tt.xds...)
			var got []name
			for _, s := range m.GetCommonTlsContext().GetValidationContext().GetMatchTypedSubjectAltNames() {
				got = append(got, name{s.GetSanType(), s.GetMatcher().GetExact()})
			}
			if diff := cmp.Diff(tt.want, got); diff != "" || m.GetSni() != tt.sni {
				t.Errorf("SNI %q; names (-want +got):\n%s", m.GetSni(), diff)
			}
			if p := m.GetCommonTlsContext().GetAlpnProtocols(); !slices.Equal(p, []string{"h2"}) {
				t.Errorf("ALPN %q", p)
			}
		})
	}
}

// TestSecretsSayWhatTheBootstrapWouldHaveSaid compares the files of the folder with what stands in a bootstrap without one.
func TestSecretsSayWhatTheBootstrapWouldHaveSaid(t *testing.T) {
	for _, tt := range []struct {
		name  string
		tls   TLS
		files []string
	}{
		{"with a certificate", TLS{CA: "/ca.pem", Cert: "/web.pem", Key: "/web.key"}, []string{"meshd-authority.json", "meshd-certificate.json"}},
		{"without", TLS{CA: "/ca.pem"}, []string{"meshd-authority.json"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if files := tt.tls.Files(); files != nil {
				t.Errorf("without a folder there are files: %v", files)
			}
			inline := upstreamTLS(t, tt.tls, here...).GetCommonTlsContext()
			tt.tls.Secrets = "/etc/envoy/secrets"
			byFile := upstreamTLS(t, tt.tls, here...).GetCommonTlsContext()
			files := tt.tls.Files()
			if names := slices.Sorted(maps.Keys(files)); !slices.Equal(names, tt.files) {
				t.Fatalf("files %q", names)
			}
			find := func(s *tlsv3.SdsSecretConfig) *tlsv3.Secret {
				t.Helper()
				f := files[s.GetName()+".json"]
				if path := s.GetSdsConfig().GetPathConfigSource().GetPath(); path != "/etc/envoy/secrets/"+s.GetName()+".json" || f.GetName() != s.GetName() {
					t.Errorf("the secret %q is at %s", s.GetName(), path)
				}
				return f
			}
			combined := byFile.GetCombinedValidationContext()
			got := &tlsv3.CommonTlsContext{AlpnProtocols: byFile.AlpnProtocols, TlsParams: byFile.TlsParams}
			validation := combined.GetDefaultValidationContext()
			validation.TrustedCa = find(combined.GetValidationContextSdsSecretConfig()).GetValidationContext().GetTrustedCa()
			got.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: validation}
			for _, s := range byFile.GetTlsCertificateSdsSecretConfigs() {
				got.TlsCertificates = append(got.TlsCertificates, find(s).GetTlsCertificate())
			}
			if diff := cmp.Diff(inline, got, protocmp.Transform()); diff != "" {
				t.Errorf("(-in the bootstrap +in files):\n%s", diff)
			}
		})
	}
}
