package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/meshd/meshd/internal/admin"
	"github.com/meshd/meshd/internal/aggregate"
	"github.com/meshd/meshd/internal/consulreg"
	"github.com/meshd/meshd/internal/mesh"
)

// A registry of Consul tells how it stands, and takes the order to release. The controller finds that out as it runs, so that
// nothing else would tell if it did not.
var _ interface {
	aggregate.Registry
	aggregate.Stander
	aggregate.Holder
} = (*consulreg.Registry)(nil)

func TestStatusTellsHowRegistriesStand(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	ill := &mesh.Standing{
		Source: "https://10.0.0.5:8501", Mode: "each service is watched", Connections: 3, Requests: 51234,
		Watches: []mesh.Watch{
			{Query: "instances", Count: 2000, Transport: "HTTP/2.0 streaming", Answered: ago(4 * time.Second)},
			{
				Query: "services", Count: 1, Transport: "HTTP/2.0 blocking-query", Index: 471123, Answered: ago(192 * time.Second),
				Error: "fails: 500 <html>\n\t<b>\x1b[2JNo cluster leader</b>; see to it that its servers run", Failed: ago(130 * time.Second),
			},
			{Query: "agent", Count: 1, Error: "does not answer: EOF", Failed: ago(130 * time.Second)},
			{Query: "checks critical", Count: 1, Error: "does not answer: EOF", Failed: ago(129 * time.Second)},
		},
		TroubledAt: ago(time.Second), Unconfirmed: 14,
	}
	for i := range 12 {
		ill.Held = append(ill.Held, mesh.Holding{
			Service: fmt.Sprint("pay-", i), Instances: i + 1, Reason: "its index went back from 9 to 7", Since: ago(time.Duration(120-i) * time.Second),
		})
	}
	well := &mesh.Standing{
		Source: "10.1.0.5:8500", Mode: "the list and failing checks are watched", Connections: 1, Requests: 1,
		Watches:     []mesh.Watch{{Query: "services", Count: 1, Transport: "HTTP/1.1 blocking-query", Index: 12, Answered: now}},
		Unconfirmed: 1,
		Held:        []mesh.Holding{{Service: "car\tt", Instances: 1, Reason: "it takes the last instance", Since: ago(26 * time.Hour)}},
	}
	for _, tt := range []struct {
		name       string
		registries []aggregate.RegistryStatus
		want       string
	}{
		{"files alone say nothing of it", []aggregate.RegistryStatus{{Name: "files", Synced: true, Published: ago(time.Minute), Services: 1}}, `
REGISTRY  SYNCED  SERVICES  PROBLEMS  LAST CHANGE
files     yes     1         0         1m0s ago
`},
		{"a registry that has asked nothing yet", []aggregate.RegistryStatus{
			{Name: "consul", Standing: &mesh.Standing{Source: "127.0.0.1:8500", Mode: "each service is watched"}},
		}, `
REGISTRY  SYNCED  SERVICES  PROBLEMS  LAST CHANGE
consul    no      0         0         -

SOURCE OF consul  127.0.0.1:8500
mode              each service is watched
connections       0 open, 0 requests so far
answers           none yet, and no failure
`},
		{"a Consul that is ill, and one that takes the last instance of a service away", []aggregate.RegistryStatus{
			{Name: "files", Synced: true, Published: ago(time.Minute), Services: 1},
			{Name: "consul-dc1", Synced: true, Published: ago(200 * time.Second), Services: 2000, Problems: 2, Standing: ill},
			{Name: "consul-dc2", Synced: true, Published: now, Services: 3, Problems: 1, Standing: well},
		}, `
REGISTRY    SYNCED  SERVICES  PROBLEMS  LAST CHANGE
files       yes     1         0         1m0s ago
consul-dc1  yes     2000      2         3m20s ago
consul-dc2  yes     3         1         0s ago

SOURCE OF consul-dc1  https://10.0.0.5:8501
mode                  each service is watched
connections           3 open, 51234 requests so far
unconfirmed           14 answers: nothing is taken away by it before the source confirms it

REGISTRY    QUERY            COUNT  INDEX   LAST ANSWER  TRANSPORT                ERROR
consul-dc1  instances        2000   -       4s ago       HTTP/2.0 streaming       -
consul-dc1  services         1      471123  3m12s ago    HTTP/2.0 blocking-query  for 2m10s: fails: 500 <html> <b>�[2JNo cluster leader</b>; see to it that its servers run
consul-dc1  agent            1      -       never        -                        for 2m10s: does not answer: EOF
consul-dc1  checks critical  1      -       never        -                        for 2m9s: as above

HELD BY consul-dc1  INSTANCES  FOR    WHY
pay-0               1          2m0s   its index went back from 9 to 7
pay-1               2          1m59s  its index went back from 9 to 7
pay-2               3          1m58s  its index went back from 9 to 7
pay-3               4          1m57s  its index went back from 9 to 7
pay-4               5          1m56s  its index went back from 9 to 7
pay-5               6          1m55s  its index went back from 9 to 7
pay-6               7          1m54s  its index went back from 9 to 7
pay-7               8          1m53s  its index went back from 9 to 7
pay-8               9          1m52s  its index went back from 9 to 7
pay-9               10         1m51s  its index went back from 9 to 7
and 2 more services, which -o json shows
Until the source confirms that they are gone, 78 instances are served on.
As long as it fails it cannot: cure that first.
If you know that they are gone: meshd release consul-dc1

SOURCE OF consul-dc2  10.1.0.5:8500
mode                  the list and failing checks are watched
connections           1 open, 1 request so far
unconfirmed           1 answer: nothing is taken away by it before the source confirms it

REGISTRY    QUERY     COUNT  INDEX  LAST ANSWER  TRANSPORT                ERROR
consul-dc2  services  1      12     0s ago       HTTP/1.1 blocking-query  -

HELD BY consul-dc2  INSTANCES  FOR   WHY
car t               1          1d2h  it takes the last instance
Until the source confirms that they are gone, 1 instance is served on.
If you know that they are gone: meshd release consul-dc2
`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			answer, err := json.Marshal(admin.Status{Version: "1.2.3", Started: ago(time.Hour), Ready: true, XDS: "127.0.0.1:15010", Registries: tt.registries})
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			if err := showStatus(&out, answer, now); err != nil {
				t.Fatal(err)
			}
			want := "meshd 1.2.3  ready, up 1h0m\nxDS          127.0.0.1:15010\n" + tt.want + "\nno problems\n\nno nodes are connected\n"
			if diff := cmp.Diff(want, out.String()); diff != "" {
				t.Errorf("(-want +got):\n%s\n%s", diff, out.String())
			}
		})
	}
}
