package consulreg

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// leastPeriod is the least time between two answers to one question.
const leastPeriod = 100 * time.Millisecond

// answer is what came of a question, decoded as far as it is new.
type answer struct {
	job   job
	watch int // which watch it came by; 0: it is that of a read
	state string
	reply reply
	err   error
	at    time.Time
	took  time.Duration // until it came

	unchanged bool // it has the index that was known
	bare      bool // and nothing else, not even what it had before
	names     map[string][]string
	instances []*instance
	sick      sick
	roll      roll
	home      string
}

const (
	servicesPath  = "/v1/catalog/services"
	instancesPath = "/v1/health/service/"
	statePath     = "/v1/health/state/"
)

// read makes a read.
func (l *link) read(ctx context.Context, j job) answer {
	a := answer{job: j}
	q := query{path: servicesPath}
	switch j.of {
	case ofHome:
		a.home, a.err = l.home(ctx)
		a.at = time.Now()
		return a
	case ofInstances:
		q.path = instancesPath + j.name
	case ofRoll:
		q.path = statePath + "any"
	}
	if j.consistent {
		q.consistency = consistent
		if a.err = l.identify(ctx); a.err != nil {
			a.at = time.Now()
			return a
		}
	}
	return l.fill(ctx, a, q)
}

// fill asks, and decodes the answer.
func (l *link) fill(ctx context.Context, a answer, q query) answer {
	asked, veiled := time.Now(), a.reply.filtered
	a.reply, a.err = l.ask(ctx, q)
	a.at = time.Now()
	a.took = a.at.Sub(asked)
	if a.err != nil {
		return a
	}
	// What watches of all say is small, and other rights show in it without another index.
	if a.job.of == ofInstances && a.reply.index == a.job.known && !veiled && !a.reply.filtered && !a.job.consistent {
		a.unchanged, a.bare = true, string(bytes.TrimSpace(a.reply.body)) == "[]"
	} else {
		a.err = a.decode()
	}
	a.reply.body = nil
	return a
}

func (a *answer) decode() (err error) {
	switch a.job.of {
	case ofServices:
		if err = json.Unmarshal(a.reply.body, &a.names); err != nil {
			return fmt.Errorf("read the list of services: %w", err)
		}
		if a.names == nil {
			a.names = map[string][]string{} // null; that it is not known is another thing
		}
		for _, tags := range a.names {
			slices.Sort(tags)
		}
	case ofInstances:
		a.instances, err = instancesOf(a.reply.body)
	case ofSick:
		a.sick, err = sickOf(a.reply.body)
	case ofRoll:
		a.roll, err = rollOf(a.reply.body)
	}
	return err
}

// follow asks a question again and again, each time waiting for what comes after the last answer, and hands over the answers. After a
// failure, and when an index goes back, it begins anew without one. It ends with ctx.
func (l *link) follow(ctx context.Context, a answer, path string, answers chan<- answer) {
	wait := l.times.list
	for failures := 0; ; {
		began := time.Now()
		known := a.job.known
		got := l.fill(ctx, a, query{path: path, index: known, wait: wait})
		if !hand(ctx, answers, got) {
			return
		}
		early := got.err == nil && known != 0 && got.reply.index == known && time.Since(began) < wait*9/10
		wait = l.times.list
		if got.hides() {
			wait = l.times.short
		}
		a.job.known = got.reply.index
		if got.err != nil || got.reply.index < known || early {
			// When a snapshot is restored Consul answers at once, but what it knew before. The same question once more would sleep.
			a.job.known = 0
		}
		if failures++; got.err == nil {
			failures = 0
		}
		between := leastPeriod - time.Since(began)
		if failures > patientFailures { // others are answered, or the gate would see to it
			between = pause(failures - patientFailures)
		}
		if !rest(ctx, between) {
			return
		}
	}
}

// patientFailures is how many failures in a row one question may have before it is asked less often than the gate lets it.
const patientFailures = 3

// hides tells whether there may be more than the answer says, which no index will tell.
func (a *answer) hides() bool {
	return a.reply.filtered || a.job.of == ofServices && len(a.names) == 0
}

// attend waits for what comes after an answer about one service, and hands over what does. It ends with ctx, and with an
// answer that is out of order: then its owner reads anew before it attends again.
func (l *link) attend(ctx context.Context, a answer, answers chan<- answer) {
	for {
		began := time.Now()
		wait := l.times.longest
		if a.reply.filtered {
			wait = l.times.long
		}
		got := l.fill(ctx, a, query{path: instancesPath + a.job.name, index: a.job.known, wait: wait, consistency: stale})
		if !hand(ctx, answers, got) || got.outOfOrder() {
			return
		}
		a.job.known, a.reply.filtered = got.reply.index, a.reply.filtered || got.reply.filtered
		if !rest(ctx, leastPeriod-time.Since(began)) {
			return
		}
	}
}

// outOfOrder tells whether a watch ends with the answer.
func (a *answer) outOfOrder() bool {
	return a.err != nil || a.reply.index < a.job.known
}

func hand(ctx context.Context, answers chan<- answer, a answer) bool {
	if ctx.Err() != nil {
		return false
	}
	select {
	case <-ctx.Done():
		return false
	case answers <- a:
		return true
	}
}

// rest waits, unless ctx ends; then it says false.
func rest(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
