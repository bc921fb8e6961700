package consulreg

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSickOf(t *testing.T) {
	got, err := sickOf([]byte(`[
		{"Node": "vm1", "CheckID": "serfHealth", "Status": "critical", "ServiceID": "", "Output": "gone", "ServiceTags": []},
		{"Node": "vm2", "CheckID": "service:pay-1", "Status": "warning", "ServiceID": "pay-1", "ServiceName": "pay"},
		{"Node": "vm2", "CheckID": "other", "Status": "critical", "ServiceID": "pay-1"},
		{"Node": "vm2", "CheckID": "third", "Status": "warning", "ServiceID": "pay-1"},
		{"Node": "vm3", "CheckID": "_node_maintenance", "Status": "critical"},
		{"Node": "vm3", "CheckID": "_service_maintenance:pay-2", "Status": "critical", "ServiceID": "pay-2"}
	]`))
	if err != nil {
		t.Fatal(err)
	}
	want := sick{
		{"vm1", ""}: critical, {"vm2", "pay-1"}: critical, {"vm3", ""}: maintenance, {"vm3", "pay-2"}: maintenance,
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(suspect{})); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if none, err := sickOf([]byte(`[]`)); len(none) > 0 || err != nil {
		t.Errorf("of none it is %v, %v", none, err)
	}
	for _, answer := range []string{"", "{}", `[{"Node": 1}]`} {
		if _, err := sickOf([]byte(answer)); err == nil || !strings.HasPrefix(err.Error(), "read the list of checks: ") {
			t.Errorf("of %q the error is %v", answer, err)
		}
	}
}

func TestDiagnose(t *testing.T) {
	for _, tt := range []struct {
		name   string
		states []sick
		want   status
	}{
		{"no check is listed", nil, passing},
		{"only others are sick", []sick{{{"vm1", "pay-2"}: critical, {"vm2", "pay-1"}: critical, {"vm2", ""}: critical}}, passing},
		{"its own check warns", []sick{{}, {{"vm1", "pay-1"}: warning}}, warning},
		{"its node is lost", []sick{{{"vm1", ""}: critical}, {{"vm1", "pay-1"}: warning}}, critical},
		{"its node warns and it is critical", []sick{{{"vm1", "pay-1"}: critical}, {{"vm1", ""}: warning}}, critical},
		{"its node is in maintenance", []sick{{{"vm1", ""}: maintenance, {"vm1", "pay-1"}: critical}}, maintenance},
		{"it is in maintenance", []sick{{{"vm1", ""}: critical, {"vm1", "pay-1"}: maintenance}}, maintenance},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := diagnose(&instance{Node: "vm1", ID: "pay-1", Status: warning}, tt.states...); got != tt.want {
				t.Errorf("it is %d, want %d", got, tt.want)
			}
		})
	}
}

// FuzzSickOf takes what is no answer of any Consul, too.
func FuzzSickOf(f *testing.F) {
	f.Add([]byte(`[{"Node": "vm1", "CheckID": "serfHealth", "Status": "critical"}]`))
	f.Add([]byte(`[null, {"ServiceID": "a", "CheckID": "_service_maintenance:a"}]`))
	f.Fuzz(func(t *testing.T, answer []byte) {
		all, err := sickOf(answer)
		if (all == nil) != (err != nil) {
			t.Fatalf("%v, %v", all, err)
		}
		for s, is := range all {
			if got := diagnose(&instance{Node: s.node, ID: s.id}, all); got < is || got > maintenance {
				t.Fatalf("an instance whose check says %d is %d", is, got)
			}
		}
	})
}

// FuzzInstancesOf reads, records and reads again.
func FuzzInstancesOf(f *testing.F) {
	f.Add([]byte(`[{"Node": {"Node": "vm2"}, "Service": {"ID": "pay", "Port": 80}, "Checks": null}, null]`))
	f.Add([]byte(`[{"Checks": [{"CheckID": "_node_maintenance"}]}, {"Service": {"Tags": ["b", "a", "a"], "Weights": {"Passing": -1}}}]`))
	f.Fuzz(func(t *testing.T, answer []byte) {
		all, err := instancesOf(answer)
		if (all == nil) != (err != nil) {
			t.Fatalf("%v, %v", all, err)
		}
		for n, i := range all {
			if i == nil || i.Status > maintenance || n > 0 && all[n-1].compare(i) > 0 {
				t.Fatalf("number %d of %v is %+v", n, all, i)
			}
		}
		if !sameInstances(all, all) {
			t.Fatal("they are not the same as themselves")
		}
	})
}
