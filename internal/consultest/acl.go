package consultest

import (
	"time"

	"github.com/hashicorp/consul/api"
)

// SetPolicy makes an ACL policy, or changes the one of that name.
func (a *Agent) SetPolicy(name, rules string) {
	a.t.Helper()
	// Consul says "ACL not found" to whoever asks for a policy that is not there, by name.
	all, _, err := a.client.ACL().PolicyList(nil)
	policy := &api.ACLPolicy{Name: name, Rules: rules}
	for _, is := range all {
		if is.Name == name {
			policy.ID = is.ID
		}
	}
	switch {
	case err != nil:
	case policy.ID == "":
		_, _, err = a.client.ACL().PolicyCreate(policy, nil)
	default:
		_, _, err = a.client.ACL().PolicyUpdate(policy, nil)
	}
	if err != nil {
		a.t.Fatalf("setting policy %s: %v", name, err)
	}
}

// NewToken makes an ACL token with these policies. The accessor names it and the secret is what clients send. It expires after
// ttl, which Consul wants to be a minute at least, or never if that is 0.
func (a *Agent) NewToken(ttl time.Duration, policies ...string) (accessor, secret string) {
	a.t.Helper()
	token := &api.ACLToken{ExpirationTTL: ttl}
	for _, p := range policies {
		token.Policies = append(token.Policies, &api.ACLTokenPolicyLink{Name: p})
	}
	made, _, err := a.client.ACL().TokenCreate(token, nil)
	if err != nil {
		a.t.Fatalf("making a token with %q: %v", policies, err)
	}
	return made.AccessorID, made.SecretID
}

// DeleteToken takes a token away.
func (a *Agent) DeleteToken(accessor string) {
	a.t.Helper()
	if _, err := a.client.ACL().TokenDelete(accessor, nil); err != nil {
		a.t.Fatalf("deleting token %s: %v", accessor, err)
	}
}
