//go:build race

package integration

// raceEnabled has meshd built with the race detector when the tests are.
const raceEnabled = true
