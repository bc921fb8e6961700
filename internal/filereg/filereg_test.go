package filereg

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/meshd/meshd/internal/aggregate/registrytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestContract(t *testing.T) {
	registrytest.Test(t, func(t *testing.T) registrytest.Fixture {
		folder := filepath.Join(t.TempDir(), "entries")
		aside := folder + ".aside"
		if err := os.Mkdir(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		check := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		return registrytest.Fixture{
			Registry: New(hclog.NewNullLogger(), "files", []string{folder}, Options{StateDir: t.TempDir()}),
			Put: func(s registrytest.Service) {
				check(os.WriteFile(filepath.Join(folder, s.Host+".yaml"), []byte(serviceText(s)), 0o644))
			},
			Remove: func(host string) { check(os.Remove(filepath.Join(folder, host+".yaml"))) },
			Break:  func() { check(os.Rename(folder, aside)) },
			Mend:   func() { check(os.Rename(aside, folder)) },
		}
	})
}

func serviceText(s registrytest.Service) string {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata:
  name: %s
spec:
  hosts: [%s]
  location: MESH_INTERNAL
  resolution: STATIC
  ports:
  - {number: %d, name: http, protocol: HTTP}
  endpoints:
`, s.Host, s.Host, s.Port)
	for _, e := range s.Endpoints {
		fmt.Fprintf(&b, "  - address: %s\n", e)
	}
	return b.String()
}
