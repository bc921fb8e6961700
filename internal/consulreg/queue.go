package consulreg

import (
	"slices"
	"time"
)

// job is one read to be made.
type job struct {
	of         target
	name       string // of a service
	consistent bool
	known      uint64 // an answer with this index, if it is not filtered, says nothing new; 0: any does
	failures   int    // in a row
}

// target is what is read or watched.
type target uint8

const (
	ofServices  target = iota // the list of services
	ofInstances               // the instances of one
	ofSick                    // the checks that are not passing
	ofRoll                    // all checks, which tell what instances there are
	ofHome                    // the datacenter of the agent
)

// queue is the reads that are to be made: each once, the urgent before the routine ones. A read that is asked for while it is
// under way is made again.
type queue struct {
	jobs    map[jobKey]*queued
	urgent  []jobKey
	routine []jobKey
	delayed []jobKey // after failures
}

type jobKey struct {
	of   target
	name string
}

type queued struct {
	job
	running bool
	again   bool      // asked for while running
	due     time.Time // not before
}

func newQueue() *queue { return &queue{jobs: map[jobKey]*queued{}} }

func (j job) key() jobKey { return jobKey{j.of, j.name} }

// add asks for a read. A consistent one stands for one that is not.
func (q *queue) add(j job, urgent bool) {
	k := j.key()
	if e := q.jobs[k]; e != nil {
		if e.running {
			e.again, e.consistent = true, e.again && e.consistent || j.consistent
			e.known = 0
			return
		}
		if j.consistent {
			e.consistent, e.known = true, 0
		}
		if urgent && e.due.IsZero() {
			q.urgent = append(q.urgent, k) // it may stand among the routine ones too; next finds it running then
		}
		return
	}
	q.jobs[k] = &queued{job: j}
	if urgent {
		q.urgent = append(q.urgent, k)
	} else {
		q.routine = append(q.routine, k)
	}
}

// waits tells whether a read is asked for or under way.
func (q *queue) waits(of target, name string) bool { return q.jobs[jobKey{of, name}] != nil }

// drop takes back what was asked for, unless it is under way.
func (q *queue) drop(of target, name string) {
	k := jobKey{of, name}
	if e := q.jobs[k]; e != nil && !e.running {
		delete(q.jobs, k)
	} else if e != nil {
		e.again = false
	}
}

// next is the read to be made now, if there is one. It stays in the queue until it has begun.
func (q *queue) next(now time.Time) (job, bool) {
	for i, k := range q.delayed {
		if e := q.jobs[k]; e == nil || e.running || e.due.IsZero() {
			q.delayed = slices.Delete(q.delayed, i, i+1)
			return q.next(now)
		} else if !now.Before(e.due) {
			return e.job, true
		}
	}
	for _, list := range []*[]jobKey{&q.urgent, &q.routine} {
		for ; len(*list) > 0; *list = (*list)[1:] {
			if e := q.jobs[(*list)[0]]; e != nil && !e.running && e.due.IsZero() {
				return e.job, true
			}
		}
	}
	return job{}, false
}

// due is when the first of the reads that failed may be made again; zero if none did.
func (q *queue) due() (first time.Time) {
	for _, k := range q.delayed {
		if e := q.jobs[k]; e != nil && !e.running && !e.due.IsZero() && (first.IsZero() || e.due.Before(first)) {
			first = e.due
		}
	}
	return first
}

// begun says that a read is under way.
func (q *queue) begun(j job) {
	e := q.jobs[j.key()]
	e.running, e.due = true, time.Time{}
}

// ended says that a read is over, and asks for it again if that is due: because it has failed, or was asked for meanwhile.
func (q *queue) ended(j job, failed bool, now time.Time) {
	k := j.key()
	e := q.jobs[k]
	delete(q.jobs, k)
	switch {
	case failed:
		j.failures++
		if e.again {
			j.consistent, j.known = j.consistent || e.consistent, 0
		}
		q.jobs[k] = &queued{job: j, due: now.Add(pause(j.failures))}
		q.delayed = append(q.delayed, k)
	case e.again:
		q.add(job{of: j.of, name: j.name, consistent: e.consistent}, true)
	}
}

// maxFailures is so many that the pause after them is the longest.
const maxFailures = 7
