// Package integration shows meshd's main job with real parts: the meshd binary, entries on disk, a real Consul, a real Envoy,
// real connections.
//
// The tests run in namespaces of their own (network, mounts, processes; see namespace_test.go), which an ordinary user may
// make as well. So ports and addresses are fixed and collide with nothing, nothing leaves the machine, and all that a test
// starts ends with it, whatever happens to the test.
//
// Needed are ip (iproute2), nft (nftables), an Envoy ($ENVOY, envoy on the PATH, or .tools/envoy/envoy) and likewise a Consul.
// What is missing fails the tests; only -short leaves them out.
package integration

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

// envMeshd tells the test process within the namespaces where the built meshd is; its presence says that we are inside.
const envMeshd = "INTEGRATION_MESHD"

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == withoutIPv6 {
		fmt.Fprintln(os.Stderr, "integration:", execWithoutIPv6(os.Args[2:]))
		os.Exit(1)
	}
	flag.Parse()
	meshd, inside := os.LookupEnv(envMeshd)
	switch {
	case testing.Short():
		fmt.Println("integration: left out because of -short")
	case !inside:
		os.Exit(runInside())
	default:
		if err := setUpNamespace(filepath.Dir(meshd)); err != nil {
			fmt.Fprintln(os.Stderr, "integration:", err)
			os.Exit(1)
		}
		meshdBinary = meshd
		goleak.VerifyTestMain(m)
	}
}

// runInside builds meshd, which may need the network, and runs this test binary again where there is none.
func runInside() int {
	dir, err := os.MkdirTemp("", "meshd-integration-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "integration:", err)
		return 1
	}
	defer func() {
		if err := os.RemoveAll(dir); err != nil {
			fmt.Fprintln(os.Stderr, "integration:", err)
		}
	}()

	binary := filepath.Join(dir, "meshd")
	// What this shell tells its own meshd, and tools of Consul, is not for ours.
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "MESHD_") || strings.HasPrefix(v, "CONSUL_") })
	if err := buildMeshd(binary); err != nil {
		fmt.Fprintln(os.Stderr, "integration:", err)
		return 1
	}
	code, err := reexec(append(env, envMeshd+"="+binary))
	if err != nil {
		fmt.Fprintln(os.Stderr, "integration:", err)
	}
	return code
}

func buildMeshd(binary string) error {
	args := []string{"build", "-o", binary}
	if raceEnabled {
		args = append(args, "-race")
	}
	cmd := exec.Command("go", append(args, "./cmd/meshd")...)
	cmd.Dir = repository()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building meshd: %w\n%s", err, out)
	}
	return nil
}

// repository is the root of the module. Tests run in the folder of their package.
func repository() string {
	dir, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		panic(err)
	}
	return dir
}

// readSources opens every Go file of the module once, from within a test: go test then knows that the result depends on
// them and does not answer from its cache although meshd has changed.
var readSources = sync.OnceValue(func() error {
	return filepath.WalkDir(repository(), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != repository() && strings.HasPrefix(d.Name(), ".") {
			return filepath.SkipDir
		}
		if !d.Type().IsRegular() || !strings.HasSuffix(path, ".go") {
			return nil
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, f)
		return errors.Join(err, f.Close())
	})
})
