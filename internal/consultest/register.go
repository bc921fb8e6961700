package consultest

import (
	"sync"

	"github.com/hashicorp/consul/api"
)

// Register adds instances, or replaces those of the same node and ID. A few are written one after the other, many at once.
func (a *Agent) Register(services ...Service) {
	a.t.Helper()
	write := func(s Service) error {
		_, err := a.client.Catalog().Register(s.registration(), nil)
		return err
	}
	if len(services) <= 32 {
		for _, s := range services {
			if err := write(s); err != nil {
				a.t.Fatalf("registering %s: %v", s.Name, err)
			}
		}
		return
	}
	var (
		workers sync.WaitGroup
		mu      sync.Mutex
		failed  error
	)
	todo := make(chan Service)
	for range 32 {
		workers.Go(func() {
			for s := range todo {
				if err := write(s); err != nil {
					mu.Lock()
					failed = err
					mu.Unlock()
				}
			}
		})
	}
	for _, s := range services {
		todo <- s
	}
	close(todo)
	workers.Wait()
	if failed != nil {
		a.t.Fatalf("registering: %v", failed)
	}
}

// Deregister takes an instance away, or a node and all that is on it if id is empty.
func (a *Agent) Deregister(node, id string) {
	a.t.Helper()
	if _, err := a.client.Catalog().Deregister(&api.CatalogDeregistration{Node: node, ServiceID: id}, nil); err != nil {
		a.t.Fatalf("deregistering %s of %s: %v", id, node, err)
	}
}

// SetStatus sets the check that an instance has from Register, or a check of the node if id is empty.
func (a *Agent) SetStatus(node, id, status string) {
	a.t.Helper()
	a.SetCheck(node, id, "", status, "")
}

// SetCheck sets a check of an instance, or of a node if id is empty. An empty checkID is that of SetStatus.
func (a *Agent) SetCheck(node, id, checkID, status, output string) {
	a.t.Helper()
	r := &api.CatalogRegistration{Node: node, SkipNodeUpdate: true, Check: check(node, id, checkID, status, output)}
	if _, err := a.client.Catalog().Register(r, nil); err != nil {
		a.t.Fatalf("setting a check of %s on %s: %v", id, node, err)
	}
}

// RemoveCheck takes away a check that SetCheck has set.
func (a *Agent) RemoveCheck(node, checkID string) {
	a.t.Helper()
	if _, err := a.client.Catalog().Deregister(&api.CatalogDeregistration{Node: node, CheckID: checkID}, nil); err != nil {
		a.t.Fatalf("removing check %s of %s: %v", checkID, node, err)
	}
}

// EnterMaintenance puts an instance, or a node if id is empty, into maintenance.
func (a *Agent) EnterMaintenance(node, id string) {
	a.t.Helper()
	a.SetCheck(node, id, maintenance(id), api.HealthCritical, "")
}

// LeaveMaintenance ends [Agent.EnterMaintenance].
func (a *Agent) LeaveMaintenance(node, id string) {
	a.t.Helper()
	a.RemoveCheck(node, maintenance(id))
}
