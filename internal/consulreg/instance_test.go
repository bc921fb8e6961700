package consulreg

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestInstancesOf reads an answer with all that is read of it, and more.
func TestInstancesOf(t *testing.T) {
	got, err := instancesOf([]byte(`[
		{"Node": {"Node": "vm2", "Address": "192.0.2.2"}, "Service": {"ID": "pay", "Service": "pay", "Port": 80}, "Checks": null},
		{
			"Node": {"ID": "2907933e", "Node": "vm1", "Address": "192.0.2.1", "Datacenter": "dc1", "Meta": {"zone": "a"},
				"TaggedAddresses": {"lan": "192.0.2.1", "wan": "198.51.100.1"}, "CreateIndex": 7},
			"Service": {"ID": "pay-1", "Service": "pay", "Kind": "connect-proxy", "Tags": ["v2", "a", "v2"], "Meta": {"version": "2"},
				"Address": "192.0.2.9", "Port": 8080, "TaggedAddresses": {"wan": {"Address": "198.51.100.9", "Port": 80}},
				"Weights": {"Passing": 10, "Warning": 2}, "Proxy": {"Mode": ""}, "Connect": {}},
			"Checks": [{"CheckID": "serfHealth", "Status": "passing", "Output": "alive"}, {"CheckID": "service:pay-1", "Status": "warning"}]
		}
	]`))
	if err != nil {
		t.Fatal(err)
	}
	want := []*instance{
		{
			Datacenter: "dc1", Node: "vm1", ID: "pay-1", Name: "pay", Kind: "connect-proxy", Address: "192.0.2.9", NodeAddress: "192.0.2.1", Port: 8080,
			Tagged: map[string]socket{"wan": {"198.51.100.9", 80}}, NodeTagged: map[string]string{"lan": "192.0.2.1", "wan": "198.51.100.1"},
			Tags: []string{"a", "v2"}, Meta: map[string]string{"version": "2"}, NodeMeta: map[string]string{"zone": "a"},
			Weights: weights{10, 2}, Status: warning,
		},
		{Node: "vm2", ID: "pay", Name: "pay", NodeAddress: "192.0.2.2", Port: 80},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if !sameInstances(got, want) {
		t.Error("they are not the same")
	}
	for _, answer := range []string{"", "{}", `[{"Service": {"Port": "80"}}]`} {
		if _, err := instancesOf([]byte(answer)); err == nil || !strings.HasPrefix(err.Error(), "read the list of instances: ") {
			t.Errorf("of %q the error is %v", answer, err)
		}
	}
}

// TestTheWorstCheckCounts mixes checks of nodes, services and maintenance modes.
func TestTheWorstCheckCounts(t *testing.T) {
	for _, tt := range []struct {
		name, checks string
		want         status
	}{
		{"no checks", ``, passing},
		{"all are well", `{"CheckID": "serfHealth", "Status": "passing"}, {"CheckID": "a", "Status": "passing"}`, passing},
		{"one warns", `{"CheckID": "a", "Status": "warning"}, {"CheckID": "b", "Status": "passing"}`, warning},
		{"the node is lost", `{"CheckID": "serfHealth", "Status": "critical"}, {"CheckID": "b", "Status": "warning"}`, critical},
		{"the node is in maintenance", `{"CheckID": "_node_maintenance", "Status": "critical"}, {"CheckID": "b", "Status": "critical"}`, maintenance},
		{"the service is in maintenance", `{"CheckID": "a", "Status": "passing"}, {"CheckID": "_service_maintenance:pay-1", "Status": "critical"}`, maintenance},
		{"a status that is none of Consul's", `{"CheckID": "a", "Status": "novel"}`, passing},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := instancesOf([]byte(`[{"Checks": [` + tt.checks + `]}]`))
			if err != nil || len(got) != 1 {
				t.Fatalf("%v, %v", got, err)
			}
			if got[0].Status != tt.want {
				t.Errorf("status is %d, want %d", got[0].Status, tt.want)
			}
		})
	}
}

// TestInstancesAreComparedInFull changes one field at a time, and saves each as the registry does.
func TestInstancesAreComparedInFull(t *testing.T) {
	one := instance{Node: "vm1", ID: "pay-1"}
	typ := reflect.TypeFor[instance]()
	for n := range typ.NumField() {
		other := one
		field := reflect.ValueOf(&other).Elem().Field(n)
		switch field.Kind() {
		case reflect.String:
			field.SetString("other")
		case reflect.Int:
			field.SetInt(7)
		case reflect.Bool:
			field.SetBool(true)
		case reflect.Uint8:
			field.SetUint(uint64(critical))
		case reflect.Struct:
			field.Set(reflect.ValueOf(weights{Passing: 7}))
		case reflect.Slice:
			field.Set(reflect.ValueOf([]string{"other"}))
		case reflect.Map:
			field.Set(reflect.MakeMap(field.Type()))
			field.SetMapIndex(reflect.ValueOf("other"), reflect.Zero(field.Type().Elem()))
		}
		if one.equal(&other) {
			t.Errorf("instances that differ in %s are equal", typ.Field(n).Name)
		}
		saved, err := json.Marshal(other)
		if err != nil {
			t.Fatal(err)
		}
		var back instance
		if err := json.Unmarshal(saved, &back); err != nil || !back.equal(&other) {
			t.Errorf("%s comes back as %+v, %v", saved, back, err)
		}
	}
}
