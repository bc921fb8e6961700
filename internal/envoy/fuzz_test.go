package envoy_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/meshd/meshd/internal/aggregate"
	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/filereg"
)

// FuzzEntryToResources makes resources of any text, and then of another in its place, for every scope of the property test.
// Each resource passes Envoy's own validation, inside and out, and refers to nothing that is not there; and by steps comes
// out what comes out at once.
func FuzzEntryToResources(f *testing.F) {
	var last []byte
	for _, pattern := range []string{"testdata/conformance/*/input/*.yaml", "../filereg/testdata/reject/*/input.yaml", "../../examples/entries/*.yaml"} {
		names, err := filepath.Glob(pattern)
		if err != nil || len(names) == 0 {
			f.Fatalf("%s: no seeds: %v", pattern, err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(text, last)
			last = text
		}
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		state, merged := filereg.NewState("files"), aggregate.Merged{}
		snapshots := make([]*envoy.Snapshot, len(envoy.Scopes))
		for _, text := range [][]byte{first, second} {
			state = filereg.Load(state, []filereg.File{{Path: "a.yaml", Data: text}})
			merged, _ = aggregate.Merge(merged, []aggregate.Source{{Registry: "files", Catalog: state.Catalog(), Synced: true}})
			for i, scope := range envoy.Scopes {
				snapshots[i] = envoy.Translate(snapshots[i], merged.View, scope, envoy.Mesh{}, snapshots[:i]...)
				valid(t, snapshots[i])
				scratch := envoy.Translate(nil, merged.View, scope, envoy.Mesh{})
				if diff := cmp.Diff(scratch.Versions, snapshots[i].Versions); diff != "" {
					t.Errorf("%+v (-from scratch +by steps):\n%s", scope, diff)
				}
				if diff := cmp.Diff(slices.Collect(scratch.Problems()), slices.Collect(snapshots[i].Problems())); diff != "" {
					t.Errorf("%+v (-from scratch +by steps):\n%s", scope, diff)
				}
			}
		}
	})
}

// valid looks at each resource and at all that is packed in it.
func valid(t *testing.T, s *envoy.Snapshot) {
	if _, err := s.Standalone(); err != nil { // which puts assignments and routes where they are referred to
		t.Error(err)
	}
	for typ := range envoy.Types {
		for name, r := range s.Resources[typ].All() {
			m, err := r.Message()
			if err != nil {
				t.Fatal(err)
			}
			if err := validate(m); err != nil {
				t.Errorf("%s %q: %v", typ, name, err)
			}
			for _, key := range r.Services {
				if _, ok := s.View.Services.Get(key); !ok {
					t.Errorf("%s %q is of %s, which is not there", typ, name, key)
				}
			}
			err = protorange.Range(m.ProtoReflect(), func(v protopath.Values) error {
				switch last := v.Index(-1); last.Step.Kind() {
				case protopath.AnyExpandStep:
					return validate(last.Value.Message().Interface())
				case protopath.FieldAccessStep:
					return refers(s, last.Step.FieldDescriptor().FullName(), last.Value)
				}
				return nil
			})
			if err != nil {
				t.Errorf("%s %q: %v", typ, name, err)
			}
		}
	}
}

func validate(m proto.Message) error {
	if v, ok := m.(interface{ ValidateAll() error }); ok {
		return v.ValidateAll()
	}
	return nil
}

// refers finds a reference to a cluster that is not there.
func refers(s *envoy.Snapshot, field protoreflect.FullName, v protoreflect.Value) error {
	switch field {
	case "envoy.config.route.v3.RouteAction.cluster", "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy.cluster":
		if _, ok := s.Resources[envoy.Cluster].Get(envoy.Name(v.String())); !ok {
			return fmt.Errorf("refers to cluster %q, which is not there", v)
		}
	}
	return nil
}
