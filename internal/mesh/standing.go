package mesh

import (
	"slices"
	"time"
)

// Standing is how a registry stands with its source, for those who look after it: whether the source answers, by what
// questions the registry keeps up with it, and what it does not believe. It is a value of its own at each moment and no part of
// a catalog or view: that a connection was opened is no news to a node.
type Standing struct {
	Source      string    `json:"source"`         // where it asks at present, as 127.0.0.1:8500
	Mode        string    `json:"mode"`           // how it keeps up, in a few words
	Connections int       `json:"connections"`    // those that are open
	Requests    uint64    `json:"requests"`       // since the process began, answered or not
	Watches     []Watch   `json:"watches"`        // its standing questions, by Query; none before the first answer or failure
	Held        []Holding `json:"held,omitempty"` // what the source says is gone, is not believed, and is served on; the longest first
	// TroubledAt is when the source failed last; zero while all that is asked is answered.
	TroubledAt time.Time `json:"troubledAt,omitzero"`
	// Unconfirmed counts the answers that take something away and are not believed before the source has confirmed them. Soon
	// they are, and count no more, or the source cannot, and what they take away is Held.
	Unconfirmed int `json:"unconfirmed,omitempty"`
}

// Up tells whether the source answers: no watch fails.
func (s Standing) Up() bool {
	return !slices.ContainsFunc(s.Watches, func(w Watch) bool { return w.Error != "" })
}

// HeldInstances counts the instances that are held, of all services.
func (s Standing) HeldInstances() (n int) {
	for _, h := range s.Held {
		n += h.Instances
	}
	return n
}

// Watch is one standing question, or many of one kind.
type Watch struct {
	Query     string    `json:"query"`               // what is asked, as "services"; unique in a standing
	Count     int       `json:"count"`               // how many questions they are
	Transport string    `json:"transport,omitempty"` // how the newest answer came, as "HTTP/2.0 streaming"
	Index     uint64    `json:"index,omitempty"`     // the source's own number of the newest answer; 0 if each question has its own
	Answered  time.Time `json:"answered,omitzero"`   // when the newest answer came; zero before the first
	Error     string    `json:"error,omitempty"`     // why there is no newer one, with a remedy; empty while all is well
	Failed    time.Time `json:"failed,omitzero"`     // since when; zero while all is well
}

// Holding is instances of one service that are served on although the source has told that they are gone, since it has told it
// in a way in which it is not believed.
type Holding struct {
	Service   string    `json:"service"`   // as the source calls it
	Instances int       `json:"instances"` // how many of it are held; others of the service may be well
	Reason    string    `json:"reason"`    // why the source is not believed
	Since     time.Time `json:"since"`     // when it told so first
}
