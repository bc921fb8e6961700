package consulreg

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/meshd/meshd/internal/keep"
	"github.com/meshd/meshd/internal/mesh"
	"github.com/meshd/meshd/internal/pmap"
)

const (
	// trouble is for how long after a failure answers are suspect.
	trouble = time.Minute
	// few is how many services are read as quickly as all checks are, which tell which services to read.
	few = 100
	// sweepRest is the least time from one sweep to the next if it is known what has changed.
	sweepRest = 10 * time.Second
	// rollShare is by how much longer than to read all checks the pauses between such reads are at least.
	rollShare = 4
	// notable is how long a failure must last to be told.
	notable = time.Second
	// retried is how many answers that were not confirmed are asked for again at one time; what becomes of them says whether
	// it is worth while to ask for the others.
	retried = 8
	// readers is how many reads are made at one time, and standing how many connections are kept for blocking queries.
	readers  = 8
	standing = 3
)

// mirror is what is known of a datacenter. One goroutine owns it; others ask Consul for it and hand it answers.
type mirror struct {
	log     hclog.Logger
	name    string
	o       Options
	link    *link
	keeper  *keep.Keeper
	group   *sync.WaitGroup
	answers chan answer

	directory *directory
	pages     pmap.Map[serviceName, *page]
	served    *served
	unread    map[string]bool // services that have not been read yet
	filtered  map[string]bool // services of which Consul has left out instances

	queue       *queue
	doubted     map[string]bool     // services with a doubt
	vacant      map[string]bool     // services that have no instances, as Consul says, though they are on its list
	refused     map[string]bool     // those, and the list under "", that a consistent read did not confirm
	retryAt     time.Time           // when some of these are read again
	mergeAt     time.Time           // when the first of the doubts has waited long enough; zero: there is none that waits
	failures    map[string]*failing // by what fails
	troubledAt  time.Time
	sickness    map[string]sick // by state; nil: not known
	recoveries  map[recovery]time.Time
	sweepAt     time.Time // of the next full comparison
	sweptAt     time.Time
	rollAt      time.Time // when all checks are to be read; zero: not
	rolledAt    time.Time // before which they are not read again
	synced      bool
	located     bool // whether it is known how far the datacenter is
	byWatches   bool // whether services are watched one by one
	attended    map[string]attendance
	attendances int
	stopStates  context.CancelFunc // nil: the checks are not watched
	watches     map[string]*mesh.Watch

	published mesh.Catalog
	own       []mesh.Problem // those of published that are not of single services
	spoken    bool           // whether anything has been published
}

// serviceName is the name of one of Consul's services.
type serviceName string

// Compare orders names.
func (n serviceName) Compare(o serviceName) int { return cmp.Compare(n, o) }

// failing is something that fails.
type failing struct {
	code, message string
	since, at     time.Time // when it failed first and last
	told          bool
}

// recovery is an instance that has got well, and waits until that is believed.
type recovery struct {
	service string
	key
}

// attendance is a watch of one service.
type attendance struct {
	number int
	stop   context.CancelFunc
}

func newMirror(log hclog.Logger, name string, o Options, l *link, k *keep.Keeper, group *sync.WaitGroup) *mirror {
	m := &mirror{
		log: log, name: name, o: o, link: l, keeper: k, group: group, answers: make(chan answer, 64),
		directory: &directory{}, served: newServed(), unread: map[string]bool{}, filtered: map[string]bool{}, queue: newQueue(),
		doubted: map[string]bool{}, vacant: map[string]bool{}, refused: map[string]bool{}, failures: map[string]*failing{}, recoveries: map[recovery]time.Time{},
		attended: map[string]attendance{}, watches: map[string]*mesh.Watch{},
		troubledAt: time.Now(), // what comes first comes soon after being connected to
	}
	m.located = o.Rules.Distance != AnyDistance
	if o.Link.Datacenter == "" && !m.located {
		m.o.Rules.Distance, m.located = Near, true
	}
	def(&m.o.Rules.Datacenter, o.Link.Datacenter)
	return m
}

// run owns the mirror until ctx ends.
func (m *mirror) run(ctx context.Context, publish func(mesh.Catalog), releases <-chan chan int, show func(mesh.Standing)) {
	jobs := make(chan job)
	for range min(readers, m.o.Connections-standing) {
		m.group.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case j := <-jobs:
					hand(ctx, m.answers, m.link.read(ctx, j))
				}
			}
		})
	}
	m.group.Go(func() { m.link.follow(ctx, answer{watch: 1}, servicesPath, m.answers) })
	if !m.located {
		m.queue.add(job{of: ofHome}, true)
	}
	for {
		m.tick(time.Now())
		held := m.held()
		m.publish(publish, held)
		show(m.standing(held))
		for handing := true; handing; { // that a read is under way changes nothing of what is known
			handing = false
			now := time.Now()
			var out chan job
			next, ok := m.queue.next(now)
			if ok {
				out = jobs
			}
			select {
			case <-ctx.Done():
				return
			case out <- next:
				m.queue.begun(next)
				handing = true
			case a := <-m.answers:
				m.take(ctx, a)
				for range len(m.answers) { // those that have come together are published together
					m.take(ctx, <-m.answers)
				}
			case <-time.After(m.untilDue(now)):
			case <-m.keeper.Changed():
			case done := <-releases:
				done <- m.release(ctx)
			}
		}
	}
}

// untilDue is how long nothing is to be done by itself.
func (m *mirror) untilDue(now time.Time) time.Duration {
	first := now.Add(time.Hour)
	soonest := func(t time.Time) {
		if !t.IsZero() && t.Before(first) {
			first = t
		}
	}
	soonest(m.queue.due())
	soonest(m.sweepAt)
	soonest(m.retryAt)
	soonest(m.rollAt)
	for _, f := range m.failures {
		if !f.told {
			soonest(f.since.Add(notable))
		}
	}
	soonest(m.mergeAt)
	for _, t := range m.recoveries {
		soonest(t)
	}
	return max(0, first.Sub(now))
}

// tick does what is due by time alone.
func (m *mirror) tick(now time.Time) {
	if !m.sweepAt.IsZero() && !now.Before(m.sweepAt) {
		m.sweep(now)
	}
	if !m.rollAt.IsZero() && !now.Before(m.rollAt) {
		m.rollAt = time.Time{}
		m.queue.add(job{of: ofRoll}, true)
	}
	if !m.retryAt.IsZero() && !now.Before(m.retryAt) {
		m.retryAt = time.Time{}
		m.retry(retried)
	}
	if !m.mergeAt.IsZero() && !now.Before(m.mergeAt) {
		m.merge(now)
	}
	for r, t := range m.recoveries {
		if !now.Before(t) {
			delete(m.recoveries, r)
			m.translate(r.service)
		}
	}
	for what, f := range m.failures {
		if !f.told && !now.Before(f.since.Add(notable)) {
			f.told = true
			m.log.Warn("Consul fails; what was known, if anything, is served on", "asked-for", what, "address", m.link.address(), "error", f.message)
		}
	}
}

// merge takes what doubted answers add and change that have waited long enough.
func (m *mirror) merge(now time.Time) {
	m.mergeAt = time.Time{}
	for name := range m.doubted {
		p, _ := m.pages.Get(serviceName(name))
		switch due := p.doubt.since.Add(patience); {
		case p.doubt.merged:
		case now.Before(due):
			m.mergeAt = earliest(m.mergeAt, due)
		default:
			m.turn(name, p, p.merge(), now)
		}
	}
}

// sweepPause is the least time from one sweep to the next, where sweeps follow each change of the list of services.
func sweepPause(services int) time.Duration {
	return min(2*time.Second, max(200*time.Millisecond, time.Duration(services)*2*time.Millisecond))
}

// sweep compares everything.
func (m *mirror) sweep(now time.Time) {
	m.sweptAt = now
	// The next one comes by itself, and not for all daemons at the same time.
	m.sweepAt = now.Add(jitter(m.o.Sweep))
	for name, tags := range m.directory.names {
		if m.o.Rules.wanted(name, tags) {
			m.want(name, false)
		}
	}
}

// want asks for a read of a service. One of which nothing is known is read with care while Consul is in trouble.
func (m *mirror) want(name string, urgent bool) {
	j := job{of: ofInstances, name: name}
	if p, ok := m.pages.Get(serviceName(name)); ok {
		if !p.filtered { // or other rights show without another index
			j.known = p.index
		}
	} else {
		j.consistent = m.troubled(time.Now())
	}
	m.queue.add(j, urgent)
}

func (m *mirror) troubled(now time.Time) bool { return now.Before(m.troubledAt.Add(trouble)) }
