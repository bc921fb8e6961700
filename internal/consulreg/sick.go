package consulreg

import (
	"encoding/json"
	"fmt"
)

// sick is the checks of one state (critical or warning), by what they are of.
type sick map[suspect]status

// suspect is an instance, or a whole node if it has no id.
type suspect struct{ node, id string }

// sickOf reads the answer to /v1/health/state/STATE. What a check says in words is not looked at, which changes often.
// https://developer.hashicorp.com/consul/api-docs/health#list-checks-in-state
func sickOf(answer []byte) (sick, error) {
	var checks []struct{ Node, CheckID, Status, ServiceID string }
	if err := json.Unmarshal(answer, &checks); err != nil {
		return nil, fmt.Errorf("read the list of checks: %w", err)
	}
	all := sick{}
	for _, c := range checks {
		s := suspect{c.Node, c.ServiceID}
		all[s] = max(all[s], statusOf(c.CheckID, c.Status))
	}
	return all, nil
}

// roll is the instances that have checks of their own, by service.
type roll map[string]map[key]bool

// rollOf reads the answer to /v1/health/state/any.
func rollOf(answer []byte) (roll, error) {
	var checks []struct{ Node, ServiceID, ServiceName string }
	if err := json.Unmarshal(answer, &checks); err != nil {
		return nil, fmt.Errorf("read the list of checks: %w", err)
	}
	all := roll{}
	for _, c := range checks {
		if c.ServiceID == "" {
			continue
		}
		if all[c.ServiceName] == nil {
			all[c.ServiceName] = map[key]bool{}
		}
		all[c.ServiceName][key{c.Node, c.ServiceID}] = true
	}
	return all, nil
}

// agrees tells whether these are the instances of a service, as far as they have checks.
func (r roll) agrees(name string, instances []*instance) bool {
	n := 0
	for _, i := range instances {
		if !i.Checked {
			continue
		}
		n++
		if !r[name][i.key()] {
			return false
		}
	}
	return n == len(r[name])
}

// diagnose is the status that an instance has by all checks that are not passing.
func diagnose(i *instance, states ...sick) status {
	worst := passing
	for _, s := range states {
		worst = max(worst, s[suspect{node: i.Node}], s[suspect{i.Node, i.ID}])
	}
	return worst
}
