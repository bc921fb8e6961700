// Package consultest gives tests a Consul: the real one as a child process ([Start]), and a stand-in that can lie like it
// ([NewStandIn]).
//
// Both hold a catalog that is changed by methods of the same names, so that one test can run against either. The real one is for
// what Consul does; the stand-in is for what it does seldom, all at once, or only when it is ill. The tests of this package hold the
// stand-in to the real one. All that a function starts is gone when the test has ended.
package consultest
