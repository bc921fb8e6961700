package strictyaml

import "testing"

func TestSuggest(t *testing.T) {
	protocols := []string{"HTTP", "HTTP2", "GRPC", "GRPC-WEB", "HTTPS", "TLS", "TCP", "MONGO"}
	for _, test := range []struct {
		name, word string
		among      []string
		want       string
	}{
		{"one letter wrong", "HTTQ", protocols, "HTTP"},
		{"another case", "http2", protocols, "HTTP2"},
		{"no dash", "grpcweb", protocols, "GRPC-WEB"},
		{"two letters swapped", "prots", []string{"hosts", "ports"}, "ports"},
		{"one letter missing", "protcol", []string{"name", "protocol"}, "protocol"},
		{"a short word", "TPC", protocols, "TCP"},
		{"nothing near", "location", protocols, ""},
		{"nothing given", "", protocols, ""},
		{"nothing to choose from", "HTTP", nil, ""},
		{"very long", string(make([]byte, 1<<20)), protocols, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := Suggest(test.word, test.among); got != test.want {
				t.Errorf("Suggest gives %q, want %q", got, test.want)
			}
		})
	}
}
