// Package xds serves snapshots to Envoys and gRPC clients: who is connected, what they were sent, what they accepted.
//
// It has its own stream handlers over the generated service stubs, for ADS and for the service of each type, delta and
// state of the world. What a stream asked for and was given is a [session]: plain state that takes requests and editions
// and returns responses, without gRPC, clock or goroutine. What a client has is never written down name by name: it is an
// edition of its scope's snapshot, with a few exceptions, and what it needs next is the difference to the newest edition,
// computed once for all streams that make the same step. What a client wants is a [roster] of names, which all share that want the
// same, with a few exceptions likewise; what it claims to have when it comes is read where it stands in the request.
//
// The promises: every subscription is answered; what is made is sent before what it replaces is taken away; at most one
// response of a type is unacknowledged on a stream, and the newest state follows it; what did not change is not sent; what a
// client rejects is held back from it alone, and leads to the services that it came from.
//
// The rules that comments cite by number are those of the design's xds.md, section 2.
package xds
