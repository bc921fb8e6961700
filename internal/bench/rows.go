package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// row is one line of what the server is held to.
type row struct {
	name, title string
	measure     func(*lab) ([]measure, error)
}

// rows that share their servers follow each other.
var rows = []row{
	{"change", "one endpoint changes: view applied → last stream has it", change},
	{"memory", "memory of an idle stream", idleMemory},
	{"rename", "one endpoint changes: file renamed → last stream has it", rename},
	{"steady", "changes at a steady rate", steady},
	{"first", "first full state for all", firstState},
	{"crowd", "one endpoint changes while as many others come at once", crowd},
	{"reconnect", "all streams move to another replica with the same input", reconnect},
	{"flat", "one change as services grow", flat},
	{"sotw", "state of the world: one endpoint changes", sotwChange},
}

// lab is what rows share: servers that run, until the end, and a count of changes.
type lab struct {
	*options
	row   string // that is being measured
	dir   string
	mark  int
	pairs map[*protocol]*pair
	live  map[*process]struct{}
	ended time.Duration // processor time of servers that have ended
	ends  []func() error
}

func newLab(o *options) (*lab, error) {
	dir, err := os.MkdirTemp("", "meshd-bench-")
	if err != nil {
		return nil, err
	}
	return &lab{options: o, dir: dir, pairs: map[*protocol]*pair{}, live: map[*process]struct{}{}, ends: []func() error{func() error { return os.RemoveAll(dir) }}}, nil
}

func (l *lab) close() error {
	var err error
	for i := len(l.ends) - 1; i >= 0; i-- {
		err = errors.Join(err, l.ends[i]())
	}
	l.ends = nil
	return err
}

// scope runs a part of a row, and ends what it has started when it is over.
func (l *lab) scope(do func() error) error {
	before := l.ends
	l.ends = nil
	err := errors.Join(do(), l.close())
	l.ends = before
	return err
}

func (l *lab) fleet(p *protocol, services int) *fleet {
	var nodes func(int) *corev3.Node = oneScope
	if l.Addresses {
		nodes = ownAddresses
	}
	f := newFleet(p, nodes, names(services))
	l.ends = append(l.ends, func() error { f.close(); return nil })
	return f
}

// keep ends a server when what has started it is over.
func (l *lab) keep(p *process) {
	l.live[p] = struct{}{}
	l.ends = append(l.ends, func() error {
		used, err := p.cpu()
		l.ended += used
		delete(l.live, p)
		return errors.Join(err, p.stop())
	})
}

// own starts one of our own servers.
func (l *lab) own(args ...string) (*process, error) {
	p, err := startOwn(l.serverExecutable, args...)
	if err == nil {
		l.keep(p)
	}
	return p, err
}

// others is how many processors were busy with what is not ours while something was done.
func (l *lab) others(do func() error) (float64, error) {
	foreign := func() (time.Duration, error) {
		all, err := busy()
		if err != nil {
			return 0, err
		}
		own, err := cpuTime(os.Getpid())
		for p := range l.live {
			used, failed := p.cpu()
			own, err = own+used, errors.Join(err, failed)
		}
		return all - own - l.ended, err
	}
	began := time.Now()
	before, err := foreign()
	if err != nil {
		return 0, err
	}
	if err := do(); err != nil {
		return 0, err
	}
	after, err := foreign()
	return max(0, ratio(after-before, time.Since(began))), err
}

func (l *lab) xds(services int) (*process, error) {
	return l.own("-services", strconv.Itoa(services))
}

// broadcast starts a server that sends the same bytes as another one.
func (l *lab) broadcast(state [][]byte, change []byte) (*process, error) {
	dir, err := os.MkdirTemp(l.dir, "broadcast-")
	if err != nil {
		return nil, err
	}
	first, then := filepath.Join(dir, "state"), filepath.Join(dir, "change")
	if err := errors.Join(writeMessages(first, state...), writeMessages(then, change)); err != nil {
		return nil, err
	}
	return l.own("-state", first, "-change", then)
}

// mesh starts meshd on a folder, and waits until it serves all of it.
func (l *lab) mesh(f *folder) (*process, [][]byte, error) {
	state, err := os.MkdirTemp(l.dir, "state-")
	if err != nil {
		return nil, nil, err
	}
	p, err := startMeshd(l.meshd, f.entries, state)
	if err != nil {
		return nil, nil, err
	}
	l.keep(p)
	fleet := newFleet(delta, oneScope, names(l.Services))
	r, err := record(fleet, p.address, l.limit)
	fleet.close()
	if err != nil {
		return nil, nil, p.wrong(err)
	}
	if _, err := p.quiet(l.limit); err != nil {
		return nil, nil, err
	}
	return p, r.state, nil
}

func (l *lab) newFolder() (*folder, error) {
	dir, err := os.MkdirTemp(l.dir, "folder-")
	if err != nil {
		return nil, err
	}
	return newFolder(dir, l.Services)
}

func (l *lab) nextMark() int {
	l.mark++
	return l.mark % mostMarks
}

// side is a server with its clients.
type side struct {
	server *process
	fleet  *fleet
	idle   float64 // memory of a stream, in KiB
	mark   int     // of the change that it always sends; 0: of the next
}

// connect opens the streams of a side, and waits until they have everything.
func (l *lab) connect(s *side, streams int) error {
	settled := func() (float64, error) {
		if _, err := s.server.quiet(l.limit); err != nil {
			return 0, err
		}
		if s.server.admin == "" {
			if _, err := s.server.tell("free"); err != nil {
				return 0, err
			}
		}
		return s.server.memory(resident)
	}
	before, err := settled()
	if err != nil {
		return err
	}
	if err := s.fleet.connect(s.server.address, streams); err != nil {
		return err
	}
	if err := l.await(s, "first state", s.fleet.full); err != nil {
		return err
	}
	after, err := settled()
	s.idle = (after - before) / float64(streams)
	return err
}

// await waits for something that a fleet does.
func (l *lab) await(s *side, what string, done <-chan struct{}) error {
	if err := s.fleet.await(what, done, l.limit); err != nil {
		return s.server.wrong(err)
	}
	return nil
}

// sample is what one change cost.
type sample struct{ wall, cpu time.Duration }

// once sends one change by one of our own servers, and waits until all have it.
func (l *lab) once(s *side, service int) (sample, error) {
	mark := s.mark
	if mark == 0 {
		mark = l.nextMark()
	}
	return l.timed(s, mark, func() (time.Time, error) { return s.server.tell("change %d %d", service, mark) })
}

// timed makes a change of one service, and waits until all have it.
func (l *lab) timed(s *side, mark int, change func() (time.Time, error)) (sample, error) {
	before, err := s.server.quiet(l.limit)
	if err != nil {
		return sample{}, err
	}
	r := s.fleet.expect(mark, 1)
	began, err := change()
	if err != nil {
		return sample{}, err
	}
	if err := l.await(s, "one change", r.done); err != nil {
		return sample{}, err
	}
	after, err := s.server.quiet(l.limit)
	return sample{time.Unix(0, r.last.Load()).Sub(began), after - before}, err
}

// inTurns measures several things in turns, and returns the median of each.
func (l *lab) inTurns(rounds int, do ...func(round int) (sample, error)) ([]sample, error) {
	walls, cpus := make([][]time.Duration, len(do)), make([][]time.Duration, len(do))
	for round := range rounds {
		for i := range do {
			s, err := do[i](round)
			if err != nil {
				return nil, err
			}
			walls[i], cpus[i] = append(walls[i], s.wall), append(cpus[i], s.cpu)
		}
	}
	out := make([]sample, len(do))
	for i := range out {
		out[i] = sample{median(walls[i]), median(cpus[i])}
	}
	return out, nil
}

// pair is an xDS server and a broadcast of what it sends.
type pair struct{ xds, raw *side }

// pair is the one of a protocol, with its clients connected. Several rows use it.
func (l *lab) pair(p *protocol) (*pair, error) {
	if made := l.pairs[p]; made != nil {
		return made, nil
	}
	x := &side{fleet: l.fleet(p, l.Services)}
	var err error
	if x.server, err = l.xds(l.Services); err != nil {
		return nil, err
	}
	raw := &side{fleet: l.fleet(p, l.Services), mark: l.nextMark()}
	// One client is there before the others, so that what a scope needs for its first stream is not memory of theirs.
	early := l.fleet(p, l.Services)
	recorded, err := record(early, x.server.address, l.limit)
	if err != nil {
		return nil, err
	}
	if _, err := x.server.tell("change %d %d", 0, raw.mark); err != nil {
		return nil, err
	}
	bytes, err := recorded.change(raw.mark, l.limit)
	if err != nil {
		return nil, err
	}
	if raw.server, err = l.broadcast(recorded.state, bytes); err != nil {
		return nil, err
	}
	made := &pair{x, raw}
	for _, s := range []*side{x, raw} {
		if err := l.connect(s, l.Streams); err != nil {
			return nil, err
		}
	}
	early.close()
	l.pairs[p] = made
	return made, nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func ratio[T time.Duration | float64](a, b T) float64 { return float64(a) / float64(b) }

// changes measures one change by a pair.
func (l *lab) changes(p *protocol) (x, raw sample, err error) {
	sides, err := l.pair(p)
	if err != nil {
		return x, raw, err
	}
	stop, err := sides.xds.server.profile(l.profile, l.row, 0)
	if err != nil {
		return x, raw, err
	}
	stopRaw, err := sides.raw.server.profile(l.profile, l.row+"-raw", 0)
	if err != nil {
		return x, raw, err
	}
	service := func(round int) int { return (1 + round) % l.Services }
	both, err := l.inTurns(l.Rounds,
		func(round int) (sample, error) { return l.once(sides.xds, service(round)) },
		func(round int) (sample, error) { return l.once(sides.raw, service(round)) })
	if err := errors.Join(err, stop(), stopRaw()); err != nil {
		return x, raw, err
	}
	return both[0], both[1], nil
}

func change(l *lab) ([]measure, error)     { return l.beside(delta, 2) }
func sotwChange(l *lab) ([]measure, error) { return l.beside(sotw, 1.5) }

// beside measures one change beside the broadcast, of whose CPU it may take so much at most.
func (l *lab) beside(p *protocol, mostCPU float64) ([]measure, error) {
	x, raw, err := l.changes(p)
	return []measure{
		held("time to the broadcast's", "x", ratio(x.wall, raw.wall), 1.5),
		held("CPU to the broadcast's", "x", ratio(x.cpu, raw.cpu), mostCPU),
		told("time", "ms", ms(x.wall)), told("broadcast's time", "ms", ms(raw.wall)),
		told("CPU", "ms", ms(x.cpu)), told("broadcast's CPU", "ms", ms(raw.cpu)),
	}, err
}

func idleMemory(l *lab) ([]measure, error) {
	p, err := l.pair(delta)
	if err != nil {
		return nil, err
	}
	if l.profile != "" {
		if _, err := p.xds.server.tell("heap %s", filepath.Join(l.profile, l.row+".pprof")); err != nil {
			return nil, err
		}
	}
	return []measure{
		held("of a stream", "KiB", p.xds.idle, 50),
		told("of a stream of the broadcast", "KiB", p.raw.idle),
	}, nil
}

func firstState(l *lab) (out []measure, err error) {
	return out, l.scope(func() error {
		f, err := l.newFolder()
		if err != nil {
			return err
		}
		m := &side{fleet: l.fleet(delta, l.Services)}
		var state [][]byte
		if m.server, state, err = l.mesh(f); err != nil {
			return err
		}
		raw := &side{fleet: l.fleet(delta, l.Services)}
		if raw.server, err = l.broadcast(state, []byte{}); err != nil {
			return err
		}
		stop, err := m.server.profile(l.profile, l.row, 20*time.Second)
		if err != nil {
			return err
		}
		peaks := map[*side]float64{}
		pass := func(s *side) func(int) (sample, error) {
			return func(int) (sample, error) {
				if err := s.server.resetPeak(); err != nil {
					return sample{}, err
				}
				before, err := s.server.quiet(l.limit)
				if err != nil {
					return sample{}, err
				}
				began := time.Now()
				if err := s.fleet.connect(s.server.address, l.Streams); err != nil {
					return sample{}, err
				}
				if err := l.await(s, "first state", s.fleet.full); err != nil {
					return sample{}, err
				}
				wall := time.Since(began)
				after, err := s.server.quiet(l.limit)
				if err != nil {
					return sample{}, err
				}
				peak, err := s.server.memory(peakResident)
				peaks[s] = max(peaks[s], peak)
				s.fleet.close()
				return sample{wall, after - before}, err
			}
		}
		both, err := l.inTurns(l.Passes, pass(m), pass(raw))
		if err := errors.Join(err, stop()); err != nil {
			return err
		}
		out = []measure{
			held("CPU to the broadcast's", "x", ratio(both[0].cpu, both[1].cpu), 1.5),
			held("peak RSS", "MiB", peaks[m]/1024, 200),
			told("broadcast's peak RSS", "MiB", peaks[raw]/1024),
			told("CPU", "s", both[0].cpu.Seconds()), told("broadcast's CPU", "s", both[1].cpu.Seconds()),
			told("time", "s", both[0].wall.Seconds()), told("broadcast's time", "s", both[1].wall.Seconds()),
		}
		return nil
	})
}

// crowd makes changes for clients that have everything, one after the other, while all others come to be sent their first state.
func crowd(l *lab) (out []measure, err error) {
	return out, l.scope(func() error {
		s := &side{fleet: l.fleet(delta, l.Services)}
		if s.server, err = l.xds(l.Services); err != nil {
			return err
		}
		if err := l.connect(s, l.FlatStreams); err != nil {
			return err
		}
		alone, err := l.inTurns(l.Rounds, func(round int) (sample, error) { return l.once(s, round%l.Services) })
		if err != nil {
			return err
		}
		others := l.fleet(delta, l.Services)
		stop, err := s.server.profile(l.profile, l.row, 10*time.Second)
		if err != nil {
			return err
		}
		came, connected := time.Now(), make(chan error, 1)
		go func() {
			err := others.connect(s.server.address, l.Streams)
			if err == nil {
				err = l.await(s, "first state", others.full)
			}
			connected <- err
		}()
		var walls []time.Duration
		for all := false; !all; {
			mark := l.nextMark()
			r := s.fleet.expect(mark, 1)
			began, err := s.server.tell("change %d %d", len(walls)%l.Services, mark)
			if err != nil {
				return err
			}
			if err := l.await(s, "one change", r.done); err != nil {
				return err
			}
			walls = append(walls, time.Unix(0, r.last.Load()).Sub(began))
			select {
			case err := <-connected:
				if err != nil {
					return err
				}
				all = true
			default:
			}
		}
		took := time.Since(came)
		slices.Sort(walls)
		out = []measure{
			held(fmt.Sprintf("median of %d changes to %d streams", len(walls), l.FlatStreams), "ms", ms(median(walls)), 500),
			told("slowest", "ms", ms(walls[len(walls)-1])),
			told("median while nobody comes", "ms", ms(alone[0].wall)),
			told("time until all have come", "s", took.Seconds()),
		}
		return stop()
	})
}

func rename(l *lab) (out []measure, err error) {
	sides, err := l.pair(delta)
	if err != nil {
		return nil, err
	}
	return out, l.scope(func() error {
		m, f, err := l.connectedMesh()
		if err != nil {
			return err
		}
		stop, err := m.server.profile(l.profile, l.row, time.Duration(l.Rounds)*700*time.Millisecond)
		if err != nil {
			return err
		}
		both, err := l.inTurns(l.Rounds,
			func(round int) (sample, error) {
				mark := l.nextMark()
				commit, err := f.change(round%l.Services, mark)
				if err != nil {
					return sample{}, err
				}
				return l.timed(m, mark, func() (time.Time, error) { return time.Now(), commit() })
			},
			func(round int) (sample, error) { return l.once(sides.xds, (1+round)%l.Services) })
		if err := errors.Join(err, stop()); err != nil {
			return err
		}
		out = []measure{
			held("time, median", "ms", ms(both[0].wall), 150),
			held("CPU to that of the push alone", "x", ratio(both[0].cpu, both[1].cpu), 2),
			told("CPU", "ms", ms(both[0].cpu)), told("CPU of the push alone", "ms", ms(both[1].cpu)),
			told("memory of a stream, garbage included", "KiB", m.idle),
		}
		return nil
	})
}

// connectedMesh is meshd with all its clients, on a folder of its own.
func (l *lab) connectedMesh() (*side, *folder, error) {
	f, err := l.newFolder()
	if err != nil {
		return nil, nil, err
	}
	m := &side{fleet: l.fleet(delta, l.Services)}
	if m.server, _, err = l.mesh(f); err != nil {
		return nil, nil, err
	}
	return m, f, l.connect(m, l.Streams)
}

func flat(l *lab) (out []measure, err error) {
	return out, l.scope(func() error {
		var turns []func(int) (sample, error)
		for _, services := range l.Flat {
			s := &side{fleet: l.fleet(delta, services)}
			var err error
			if s.server, err = l.xds(services); err != nil {
				return err
			}
			if err := l.connect(s, l.FlatStreams); err != nil {
				return err
			}
			turns = append(turns, func(round int) (sample, error) { return l.once(s, round%services) })
		}
		all, err := l.inTurns(l.Rounds, turns...)
		if err != nil {
			return err
		}
		few, many := all[0], all[len(all)-1]
		step := fmt.Sprintf("%d → %d services, %d streams", l.Flat[0], l.Flat[len(all)-1], l.FlatStreams)
		out = []measure{
			held("CPU, "+step, "x", ratio(many.cpu, few.cpu), 1.5),
			held("time, "+step, "x", ratio(many.wall, few.wall), 1.5),
		}
		for i, s := range all {
			out = append(out, told(fmt.Sprintf("CPU of %d services", l.Flat[i]), "ms", ms(s.cpu)),
				told(fmt.Sprintf("time of %d services", l.Flat[i]), "ms", ms(s.wall)))
		}
		return nil
	})
}

func reconnect(l *lab) (out []measure, err error) {
	return out, l.scope(func() error {
		f, err := l.newFolder()
		if err != nil {
			return err
		}
		_, state, err := l.mesh(f)
		if err != nil {
			return err
		}
		other, _, err := l.mesh(f)
		if err != nil {
			return err
		}
		fleet := l.fleet(delta, l.Services)
		fleet.returning = true
		had := &recording{state: state}
		if fleet.clusters, err = had.versions(clusterType); err != nil {
			return err
		}
		versions, err := had.versions(endpointType)
		if err != nil {
			return err
		}
		fleet.endpoints = append(fleet.endpoints[:len(fleet.endpoints):len(fleet.endpoints)], versions...)

		// It is over when all that was asked is taken, as many answers have come as are owed, and the server rests for long: it
		// may just have been waiting for a processor.
		back := func(p *process, answers int) (float64, error) {
			before, err := p.quiet(l.limit)
			if err != nil {
				return 0, err
			}
			if err := fleet.connect(p.address, l.Streams); err != nil {
				return 0, err
			}
			for end := time.Now().Add(l.limit); fleet.unsent.Load() > 0 || fleet.messages.Load() < int64(answers); time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					return 0, p.wrong(fmt.Errorf("%d bytes of requests are not taken, %d answers have come", fleet.unsent.Load(), fleet.messages.Load()))
				}
			}
			var after time.Duration
			for range 4 {
				if after, err = p.quiet(l.limit); err != nil {
					return 0, err
				}
			}
			return ms(after-before) / float64(l.Streams), nil
		}
		silent, err := l.broadcast(nil, []byte{})
		if err != nil {
			return err
		}
		reading, err := back(silent, 0)
		if err != nil {
			return err
		}
		fleet.close()
		stop, err := other.profile(l.profile, l.row, 10*time.Second)
		if err != nil {
			return err
		}
		used, err := back(other, l.Streams) // the wildcard is always answered, if only with nothing (rule 16)
		if err := errors.Join(err, stop()); err != nil {
			return err
		}
		out = []measure{
			held("resources sent", "", float64(fleet.resources.Load()+fleet.removed.Load()), 0),
			held("CPU of a stream", "ms", used, 1),
			told("CPU of a stream where its requests are thrown away", "ms", reading),
			told("bytes sent to a stream", "B", float64(fleet.bytes.Load())/float64(l.Streams)),
			told("size of its requests", "KiB", float64(len(fleet.clusters)+len(fleet.endpoints))/1024),
		}
		return nil
	})
}

func steady(l *lab) (out []measure, err error) {
	sides, err := l.pair(delta)
	if err != nil {
		return nil, err
	}
	// Without files and their registry, for comparison.
	alone, err := l.atRate(sides.xds, func(service, mark int) (func() error, error) {
		return func() error { _, err := sides.xds.server.tell("change %d %d", service, mark); return err }, nil
	})
	if err != nil {
		return nil, err
	}
	return out, l.scope(func() error {
		m, f, err := l.connectedMesh()
		if err != nil {
			return err
		}
		r, err := l.atRate(m, f.change)
		if err != nil {
			return err
		}
		out = []measure{
			held("processors", "", r.processors, 0.5),
			held("rename → a stream has it, 99th percentile", "ms", r.percentile(0.99), 300),
			told("median", "ms", r.percentile(0.5)), told("slowest", "ms", r.percentile(1)),
			told("responses a second to a stream", "", r.responses),
			told("from memory: processors", "", alone.processors),
			told("from memory: 99th percentile", "ms", alone.percentile(0.99)),
			told("from memory: median", "ms", alone.percentile(0.5)),
			told("from memory: responses a second to a stream", "", alone.responses),
		}
		return nil
	})
}

// flow is what changes at a steady rate came to.
type flow struct {
	*round
	processors float64 // that the server has used
	responses  float64 // a second to a stream
}

// atRate makes changes at the rate, of one service after the other. ready returns what does one.
func (l *lab) atRate(s *side, ready func(service, mark int) (func() error, error)) (*flow, error) {
	changes := int(l.Rate * l.Seconds)
	first := l.mark + 1
	l.mark += changes
	if l.mark >= mostMarks {
		return nil, fmt.Errorf("more than %d changes", mostMarks)
	}
	r := s.fleet.expect(first, changes)
	name := l.row
	if s.server.admin == "" {
		name += "-memory"
	}
	stop, err := s.server.profile(l.profile, name, time.Duration(l.Seconds*float64(time.Second)))
	if err != nil {
		return nil, err
	}
	messages := s.fleet.messages.Load()
	before, err := s.server.cpu()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	for i := range changes {
		time.Sleep(time.Until(began.Add(time.Duration(float64(i) / l.Rate * float64(time.Second)))))
		commit, err := ready(i%l.Services, first+i)
		if err != nil {
			return nil, err
		}
		r.begun[i].Store(time.Now().UnixNano())
		if err := commit(); err != nil {
			return nil, err
		}
	}
	if err := l.await(s, "steady changes", r.done); err != nil {
		return nil, fmt.Errorf("%d arrivals are missing: %w", r.left.Load(), err)
	}
	after, err := s.server.cpu()
	took := time.Since(began)
	return &flow{
		round: r, processors: ratio(after-before, took),
		responses: float64(s.fleet.messages.Load()-messages) / took.Seconds() / float64(l.Streams),
	}, errors.Join(err, stop())
}
