package aggregate

import (
	"time"

	"github.com/meshd/meshd/internal/mesh"
)

// pace is the pause after each view. After a quiet time a change is handed on at once; while changes keep coming the pauses grow,
// so that a view stands for many of them: each costs every Envoy work on its main thread, which is what limits a mesh.
type pace struct {
	pause time.Duration // the last one
	began time.Time
}

const (
	shortestPause = 20 * time.Millisecond
	longestPause  = 200 * time.Millisecond
)

// hurried is how much of a pause a change waits that takes traffic from somewhere.
func hurried(pause time.Duration) time.Duration { return pause / 2 }

// after is the pause after a view at now. It is longer than the last one unless nothing came for as long again once that was over.
func (p *pace) after(now time.Time) time.Duration {
	if now.Sub(p.began) <= 2*p.pause {
		p.pause = min(longestPause, 2*p.pause)
	} else {
		p.pause = shortestPause
	}
	p.began = now
	return p.pause
}

// urgent tells whether a view takes away, or makes worse, an endpoint that the one before it has. Requests go there until nodes know.
func urgent(before, after *mesh.View, change Change) bool {
	if len(change.Removed) > 0 {
		return true
	}
	for _, key := range change.Altered {
		was, _ := before.Services.Get(key)
		is, _ := after.Services.Get(key)
		if worse(was, is) {
			return true
		}
	}
	return false
}

// worse tells whether a service has lost an endpoint, or the health of one.
func worse(was, is *mesh.Service) bool {
	health := make(map[mesh.Address]mesh.Health, len(is.Endpoints))
	for i := range is.Endpoints {
		health[is.Endpoints[i].Address] = is.Endpoints[i].Health
	}
	for i := range was.Endpoints {
		before := &was.Endpoints[i]
		if now, there := health[before.Address]; !there || now > before.Health && now > mesh.Healthy {
			return true
		}
	}
	return false
}
