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

// diagnose is the status that an instance has by all checks that are not passing.
func diagnose(i *instance, states ...sick) status {
	worst := passing
	for _, s := range states {
		worst = max(worst, s[suspect{node: i.Node}], s[suspect{i.Node, i.ID}])
	}
	return worst
}
