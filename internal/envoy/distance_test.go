package envoy

import (
	"testing"

	"github.com/meshd/meshd/internal/mesh"
)

func TestNearerEndpointsComeFirst(t *testing.T) {
	here := mesh.Locality{Region: "eu", Zone: "1", SubZone: "a"}
	places := []mesh.Locality{here, {Region: "eu", Zone: "1", SubZone: "b"}, {Region: "eu", Zone: "2"}, {Region: "us", Zone: "1"}, {}}
	for _, tt := range []struct {
		name string
		d    mesh.Distribution
		from mesh.Locality
		want []bool // whether a place comes after the one before it
	}{
		{"any endpoint", mesh.AnyEndpoint, here, []bool{false, false, false, false}},
		{"by zone", mesh.PreferClose, here, []bool{false, true, true, false}},
		{"by sub-zone", mesh.PreferSameNode, here, []bool{true, true, true, false}},
		{"of a node that does not say where it is", mesh.PreferClose, mesh.Locality{}, []bool{false, false, false, false}},
	} {
		for i, after := range tt.want {
			a, b := distance(tt.d, tt.from, places[i]), distance(tt.d, tt.from, places[i+1])
			if a > b || a < b != after {
				t.Errorf("%s: %v has priority %d, %v has %d", tt.name, places[i], a, places[i+1], b)
			}
		}
	}
}
