package consulreg

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/meshd/meshd/internal/mesh"
)

// take takes in an answer.
func (m *mirror) take(ctx context.Context, a answer) {
	if a.watch == 0 {
		m.queue.ended(a.job, a.err != nil, a.at)
	}
	if m.isOver(&a) {
		return
	}
	m.note(&a)
	switch a.job.of {
	case ofServices:
		m.takeServices(ctx, &a)
	case ofInstances:
		m.takeInstances(ctx, &a)
	case ofSick:
		m.takeSick(&a)
	case ofRoll:
		m.takeRoll(&a)
	case ofHome:
		if a.err == nil {
			m.locate(a.home)
		}
	}
}

// isOver tells whether an answer is of a watch that was given up.
func (m *mirror) isOver(a *answer) bool {
	switch {
	case a.watch == 0:
		return false
	case a.job.of == ofInstances:
		return m.attended[a.job.name].number != a.watch
	}
	return a.job.of == ofSick && m.stopStates == nil
}

// The names under which failures and watches are shown.
const (
	listWatch = "services"
	firmRead  = "services, consistently"
	readWatch = "instances"
	homeRead  = "agent"
	rollRead  = "all checks"
)

func (a *answer) shownAs() string {
	switch a.job.of {
	case ofServices:
		return listWatch
	case ofInstances:
		return readWatch
	case ofHome:
		return homeRead
	case ofRoll:
		return rollRead
	}
	return "checks " + a.state
}

// note keeps what an answer says of how Consul is.
func (m *mirror) note(a *answer) {
	what := a.shownAs()
	w := m.watches[what]
	if w == nil {
		w = &mesh.Watch{Query: what, Count: 1}
		m.watches[what] = w
	}
	if a.job.of == ofServices && a.job.consistent {
		what = firmRead // or each answer that is not to be believed would end what is told of it
	}
	f := m.failures[what]
	if a.err != nil {
		m.troubledAt = a.at
		code, message := m.link.failure(a.err)
		if f == nil {
			f = &failing{since: a.at}
			m.failures[what] = f
			w.Failed = a.at
		}
		f.at, f.code, f.message, w.Error = a.at, code, message, message
		return
	}
	if f != nil {
		if f.told {
			m.log.Info("Consul answers again", "asked-for", what, "address", m.link.address())
		}
		delete(m.failures, what)
		w.Error, w.Failed = "", time.Time{}
	}
	if a.job.of == ofHome {
		delete(m.watches, what) // it is asked no more
		return
	}
	w.Answered, w.Transport = a.at, a.reply.transport
	if a.job.of != ofInstances {
		w.Index = a.reply.index
	}
}

// locate says in which datacenter the agent is.
func (m *mirror) locate(home string) {
	m.located = true
	m.o.Rules.Distance = Near
	if home == "" {
		m.log.Warn("the token may not read the agent, so that it is not known whether the datacenter is its own; taken for near", "datacenter", m.o.Link.Datacenter)
	} else if home != m.o.Link.Datacenter {
		m.o.Rules.Distance = Far
	}
	for name := range m.pages.All() {
		m.translate(string(name))
	}
}

func (m *mirror) takeServices(ctx context.Context, a *answer) {
	if a.err != nil {
		if a.watch == 0 {
			m.refuse("", a.at)
			for name := range m.vacant {
				m.refuse(name, a.at)
			}
		}
		return
	}
	was := m.directory
	next, confirm := m.o.Guard.look(was, listing{
		names: a.names, index: a.reply.index, filtered: a.reply.filtered,
		consistent: a.job.consistent, troubled: m.troubled(a.at), at: a.at,
	})
	m.directory = next
	if a.job.consistent {
		for name := range m.vacant {
			if _, there := a.names[name]; there || confirm {
				m.refuse(name, a.at)
			}
		}
	}
	switch {
	case confirm && a.job.consistent:
		m.refuse("", a.at)
	case confirm:
		m.confirm("", true)
	default:
		m.accept("")
	}
	if next == was {
		return
	}
	if next.doubt == nil && next.index < was.index {
		// An older state was restored. A watch of a service that waits for more than its index now might sleep for very long.
		for name, at := range m.attended {
			at.stop()
			delete(m.attended, name)
		}
		m.sweep(a.at)
	}
	for name, tags := range next.names {
		before, known := was.names[name]
		p, read := m.pages.Get(serviceName(name))
		_, attended := m.attended[name]
		if !read && m.o.Rules.wanted(name, tags) {
			m.unread[name] = true
		}
		switch {
		case attended: // it will say so itself
		case read && known && !slices.Equal(before, tags), !read && m.o.Rules.wanted(name, tags):
			m.want(name, true)
		case read && p.index == 0 && p.doubt == nil: // it is of a record
			m.want(name, false)
		}
	}
	if next.doubt == nil {
		for name := range m.pages.All() {
			if _, there := next.names[string(name)]; !there {
				m.forget(string(name))
			}
		}
		for name := range was.names {
			if _, there := next.names[name]; !there {
				m.queue.drop(ofInstances, name)
				delete(m.unread, name)
			}
		}
	}
	if !m.byWatches && a.watch != 0 && a.reply.index != a.job.known && was.names != nil {
		// Something has changed, perhaps of a service whose tags have not.
		if m.pages.Len() > few {
			m.rollAt = earliest(m.rollAt, latest(a.at, m.rolledAt))
		} else {
			m.sweepAt = earliest(m.sweepAt, m.sweptAt.Add(sweepPause(m.pages.Len())))
		}
	}
	if m.sweepAt.IsZero() {
		m.sweepAt = a.at.Add(jitter(m.o.Sweep))
	}
	m.choose(ctx, a.reply.transport)
}

// refuse notes that a consistent read has not confirmed an answer. It is asked for again after a while.
func (m *mirror) refuse(name string, now time.Time) {
	if m.doubted[name] || name == "" && m.directory.doubt != nil {
		m.refused[name] = true
		if m.retryAt.IsZero() {
			m.retryAt = now.Add(pause(maxFailures))
		}
	}
}

// accept notes that nothing is in doubt any more. If that comes from another try, the others are worth one too.
func (m *mirror) accept(name string) {
	if m.refused[name] {
		delete(m.refused, name)
		m.retry(len(m.refused))
	}
}

// retry asks for so many of the answers again that were not confirmed.
func (m *mirror) retry(n int) {
	for name := range m.refused { // in no order, so that none is always last
		if n--; n < 0 {
			return
		}
		m.confirm(name, false)
	}
}

// confirm asks for a consistent read of a service, or of the list if the name is empty.
func (m *mirror) confirm(name string, urgent bool) {
	j := job{of: ofInstances, name: name, consistent: true}
	if name == "" {
		j.of = ofServices
	}
	m.queue.add(j, urgent)
}

func (m *mirror) takeInstances(ctx context.Context, a *answer) {
	name := a.job.name
	if a.watch != 0 && a.outOfOrder() {
		delete(m.attended, name)
		m.want(name, true)
	}
	if a.err != nil {
		if a.job.consistent {
			m.refuse(name, a.at)
		}
		return
	}
	if _, listed := m.directory.names[name]; !listed {
		return
	}
	was, known := m.pages.Get(serviceName(name))
	if !known {
		was = &page{}
	}
	if a.job.consistent && len(a.instances) == 0 && len(was.instances) > 0 && !a.reply.filtered {
		// A service without instances is not on the list. To whom instances are hidden without a word, the list may tell.
		m.vacant[name] = true
		m.confirm("", true)
		return
	}
	delete(m.vacant, name)
	if a.watch != 0 && a.bare && len(was.instances) > 0 {
		m.want(name, false) // a watch does not say whether instances are hidden; a read does
	}
	if a.watch != 0 && was.filtered {
		a.reply.filtered = true // a watch does not say whether it is; a read does
		m.want(name, false)
	}
	if !a.unchanged {
		next, confirm := m.o.Guard.judge(was, sighting{
			instances: a.instances, index: a.reply.index, filtered: a.reply.filtered, contact: a.reply.contact,
			consistent: a.job.consistent, troubled: m.troubled(a.at), at: a.at,
		})
		m.turn(name, was, next, a.at)
		switch {
		case confirm && a.job.consistent:
			m.refuse(name, a.at)
		case confirm:
			m.confirm(name, true)
		}
	}
	if m.hidden() != "" { // and nobody will tell when it is not any more
		m.sweepAt = earliest(m.sweepAt, a.at.Add(m.link.times.short))
	}
	m.attend(ctx, name)
}

// turn makes a page of a service the one that is believed.
func (m *mirror) turn(name string, was, next *page, now time.Time) {
	m.pages = m.pages.With(serviceName(name), next)
	if next.index > 0 || len(next.instances) > 0 { // and not just a doubt
		delete(m.unread, name)
	}
	set(m.doubted, name, next.doubt != nil)
	switch {
	case next.doubt == nil:
		m.accept(name)
	case !next.doubt.merged:
		m.mergeAt = earliest(m.mergeAt, next.doubt.since.Add(patience))
	}
	set(m.filtered, name, next.filtered)
	if m.o.Rules.Datacenter == "" && len(next.instances) > 0 {
		m.o.Rules.Datacenter = next.instances[0].Datacenter
	}
	if !sameInstances(was.instances, next.instances) {
		m.watchRecoveries(name, was.instances, next.instances, now)
		m.translate(name)
	}
}

// forget drops a service.
func (m *mirror) forget(name string) {
	m.pages = m.pages.Without(serviceName(name))
	m.queue.drop(ofInstances, name)
	delete(m.doubted, name)
	delete(m.vacant, name)
	delete(m.refused, name)
	delete(m.filtered, name)
	if at, ok := m.attended[name]; ok {
		at.stop()
		delete(m.attended, name)
	}
	for r := range m.recoveries {
		if r.service == name {
			delete(m.recoveries, r)
		}
	}
	m.served.put(name, outcome{})
}

// release believes all that is doubted, and returns how many instances go by that.
func (m *mirror) release(ctx context.Context) (gone int) {
	now := time.Now()
	for name := range maps.Clone(m.doubted) {
		p, _ := m.pages.Get(serviceName(name))
		gone += p.lost()
		delete(m.vacant, name)
		m.turn(name, p, p.release(), now)
		m.want(name, false) // what was doubted may be old
		m.attend(ctx, name)
	}
	if d := m.directory.doubt; d != nil {
		for name := range m.directory.names {
			if _, there := d.names[name]; !there {
				if p, ok := m.pages.Get(serviceName(name)); ok {
					gone += len(p.instances)
					m.forget(name)
				}
			}
		}
		m.directory = &directory{names: d.names, index: d.index, filtered: d.filtered}
		maps.DeleteFunc(m.unread, func(name string, _ bool) bool { _, there := d.names[name]; return !there })
		m.queue.drop(ofServices, "")
		delete(m.refused, "")
	}
	m.log.Warn("released what was held, as told", "instances", gone)
	return gone
}

// watchRecoveries notes the instances that have got well, if that is to be believed only after a time.
func (m *mirror) watchRecoveries(name string, was, is []*instance, now time.Time) {
	if m.o.Damping == 0 {
		return
	}
	for _, i := range is {
		r := recovery{name, i.key()}
		_, waits := m.recoveries[r]
		at, there := slices.BinarySearchFunc(was, i, (*instance).compare)
		switch {
		case i.Status >= critical:
			delete(m.recoveries, r)
		case there && was[at].Status >= critical && !waits:
			m.recoveries[r] = now.Add(m.o.Damping)
		}
	}
}

// translate makes mesh services of what is believed of one of Consul's.
func (m *mirror) translate(name string) {
	p, ok := m.pages.Get(serviceName(name))
	if !ok || !m.located {
		return
	}
	instances := p.instances
	for r := range m.recoveries {
		if r.service != name {
			continue
		}
		if n := slices.IndexFunc(instances, func(i *instance) bool { return i.key() == r.key }); n >= 0 {
			if &instances[0] == &p.instances[0] {
				instances = slices.Clone(instances)
			}
			damped := *instances[n]
			damped.Status = critical
			instances[n] = &damped
		}
	}
	m.served.put(name, m.o.Rules.translate(m.name, name, instances))
}

// takeSick reads the services whose instances are not as well, or as sick, as their checks say.
func (m *mirror) takeSick(a *answer) {
	if a.err != nil {
		return
	}
	if was, known := m.sickness[a.state]; known && maps.Equal(was, a.sick) {
		return
	}
	m.sickness[a.state] = a.sick
	if len(m.sickness) < len(states) {
		return
	}
	all := slices.Collect(maps.Values(m.sickness))
	for name, p := range m.pages.All() {
		if m.tellable(string(name), p) && slices.ContainsFunc(p.instances, func(i *instance) bool { return diagnose(i, all...) != i.Status }) {
			m.want(string(name), true)
		}
	}
}

// tellable tells whether a service is to be read for what checks tell of it. One in doubt is not, which may differ from its checks for long and
// is asked for again anyway; but it is while that is under way, or what has changed since it was asked for is never read.
func (m *mirror) tellable(name string, p *page) bool {
	return p.doubt == nil || m.queue.waits(ofInstances, name)
}

// takeRoll reads the services whose instances have come or gone. If there are such, that is what has changed, most likely, and the
// sweep for what a roll does not tell (a port, a tag) may wait.
func (m *mirror) takeRoll(a *answer) {
	m.rolledAt = a.at.Add(rollShare * a.took)
	if m.byWatches || a.err != nil {
		return
	}
	sweepAt := m.sweptAt.Add(sweepPause(m.pages.Len()))
	for name, p := range m.pages.All() {
		if m.tellable(string(name), p) && !a.roll.agrees(string(name), p.instances) {
			m.want(string(name), true)
			sweepAt = m.sweptAt.Add(sweepRest)
		}
	}
	m.sweepAt = earliest(m.sweepAt, sweepAt)
}

// states are those of checks that are watched together where services are not watched one by one.
var states = []string{"critical", "warning"}

// choose chooses how to keep up: one watch for each service if they share connections and are not too many; else watches of
// what is not well, and sweeps.
func (m *mirror) choose(ctx context.Context, transport string) {
	wanted := 0
	for name, tags := range m.directory.names {
		if m.o.Rules.wanted(name, tags) {
			wanted++
		}
	}
	most := m.o.Watches
	if m.byWatches {
		most += most / 20 // to go from one way to the other and back costs more than a few watches
	}
	m.byWatches = strings.HasPrefix(transport, "HTTP/2") && wanted <= most
	switch {
	case m.byWatches && m.stopStates != nil:
		m.stopStates()
		m.stopStates, m.sickness = nil, nil
		for _, s := range states {
			delete(m.watches, "checks "+s)
			delete(m.failures, "checks "+s)
		}
	case !m.byWatches && m.stopStates == nil && m.directory.names != nil:
		for name, at := range m.attended {
			at.stop()
			delete(m.attended, name)
		}
		var sub context.Context
		sub, m.stopStates = context.WithCancel(ctx)
		m.sickness = map[string]sick{}
		for _, s := range states {
			m.group.Go(func() {
				m.link.follow(sub, answer{watch: 1, state: s, job: job{of: ofSick}}, statePath+s, m.answers)
			})
		}
	}
	if m.byWatches {
		for name := range m.pages.All() {
			m.attend(ctx, string(name))
		}
	}
}

// attend watches a service by itself, if that is how to keep up, and it has been read.
func (m *mirror) attend(ctx context.Context, name string) {
	p, read := m.pages.Get(serviceName(name))
	_, attended := m.attended[name]
	if !m.byWatches || attended || !read || p.index == 0 || p.doubt != nil || m.queue.waits(ofInstances, name) {
		return
	}
	m.attendances++
	sub, stop := context.WithCancel(ctx)
	a := answer{watch: m.attendances + 1, job: job{of: ofInstances, name: name, known: p.index}, reply: reply{filtered: p.filtered}}
	m.attended[name] = attendance{a.watch, stop}
	m.group.Go(func() {
		defer stop()
		m.link.attend(sub, a, m.answers)
	})
}
