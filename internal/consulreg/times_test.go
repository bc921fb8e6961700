package consulreg

import "time"

// Hasten shortens how long the registry waits for an answer, how long blocking queries sleep, and how long an HTTP/2 connection may
// be silent. It must not run yet.
func (r *Registry) Hasten(answer, sleep time.Duration) {
	t := &r.link.times
	t.answer, t.patient, t.list, t.long, t.longest, t.short, t.ping, t.pong = answer, 2*answer, min(sleep, t.list), sleep, sleep, min(sleep, t.short), answer/2, answer/2
}
