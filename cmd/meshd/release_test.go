package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestReleaseTellsWhatCameOfIt(t *testing.T) {
	for _, tt := range []struct {
		name           string
		status         int
		answer         string
		args           []string
		exit           int
		stdout, stderr string
	}{
		{"several", 200, `{"registry": "consul", "released": 12}`, nil, 0, "released 12 instances of consul\n", ""},
		{"one", 200, `{"registry": "consul", "released": 1}`, nil, 0, "released 1 instance of consul\n", ""},
		{"none", 200, `{"registry": "consul", "released": 0}`, nil, 0, "consul holds nothing\n", ""},
		{"as JSON", 200, `{"registry": "consul", "released": 12}`, []string{"-o", "json"}, 0, "{\n  \"registry\": \"consul\",\n  \"released\": 12\n}\n", ""},
		{"a name that no registry has", 404, `there is no registry "consul"; there are: files`, nil, 1, "", `meshd release: there is no registry "consul"; there are: files` + "\n"},
		{"a registry that never holds anything", 409, "the registry consul holds nothing that can be released", nil, 1, "", "meshd release: the registry consul holds nothing that can be released\n"},
		{"a registry that takes no orders", 503, "the registry consul has not taken the order", nil, 2, "", "meshd release: ADDR: the registry consul has not taken the order\n"},
		{"a daemon that knows no release", 404, "404 page not found", nil, 2, "", "meshd release: ADDR is no meshd of this version: POST /api/v1/registries/consul/release: 404 Not Found\n"},
		{"something else that answers all", 200, "<html>", nil, 2, "", "meshd release: ADDR is no meshd of this version: POST /api/v1/registries/consul/release: 200 OK\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var asked string
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked = r.Method + " " + r.URL.Path
				w.WriteHeader(tt.status)
				fmt.Fprintln(w, tt.answer)
			}))
			defer server.Close()
			address := strings.TrimPrefix(server.URL, "http://")
			var stdout, stderr bytes.Buffer
			exit := run(append([]string{"release", "consul", "--admin", address}, tt.args...), &stdout, &stderr)
			said := strings.ReplaceAll(stderr.String(), address, "ADDR")
			if exit != tt.exit || stdout.String() != tt.stdout || said != tt.stderr {
				t.Errorf("exit code %d, %q and %q; want %d, %q and %q", exit, stdout.String(), said, tt.exit, tt.stdout, tt.stderr)
			}
			if want := "POST /api/v1/registries/consul/release"; asked != want {
				t.Errorf("asked for %s, want %s", asked, want)
			}
		})
	}
}
