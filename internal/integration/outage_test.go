package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestRestart shows that Envoys serve on while meshd is away, that its return costs them nothing, and that what was edited
// meanwhile arrives.
func TestRestart(t *testing.T) {
	for _, p := range []protocol{delta, stateOfTheWorld} {
		for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
			t.Run(fmt.Sprintf("%s, %s", p, s), func(t *testing.T) {
				app, d, e := startMesh(t, redirect, p)
				l := startLoad(t, app.unchanging())
				const changes = `^(cluster_manager\.cluster_(added|modified|removed)|listener_manager\.listener_(added|modified|removed)|http\..*\.rds\..*\.config_reload)$`
				before := e.stats(t, changes)

				if s == syscall.SIGTERM {
					if code := d.stop(stopWithin); code != 0 {
						t.Errorf("meshd ended with code %d", code)
					}
				} else {
					d.kill()
				}
				e.awaitConnected(t, 0)
				l.progress(t)
				d.start(t)
				e.awaitConnected(t, 1)
				requireInStep(t, d, e, redirect, p)
				l.progress(t)
				for name, n := range e.stats(t, changes) {
					if n != before[name] {
						t.Errorf("meshd's return made Envoy count %d more of %s", n-before[name], name)
					}
				}

				d.kill()
				d.edit(t, "shop.yaml", "10.77.0.13", "10.77.0.14")
				d.start(t)
				awaitReaches(t, "an edit while meshd was away", app.http("http://shop.mesh.internal:8080/"), "10.77.0.14:9001")
				l.progress(t)
				l.requireNoFailure(t)
				requireInStep(t, d, e, redirect, p)
				d.requireAccepted(t)
			})
		}
	}
}

// TestEnvoyFirst shows that it does not matter who starts first.
func TestEnvoyFirst(t *testing.T) {
	app := newMesh(t, redirect)
	d := newMeshd(t, folders(redirect)...)
	e := launchEnvoy(t, d.bootstrap(t, redirect, delta))
	e.awaitConnected(t, 0)
	d.start(t)
	e.awaitReady(t)
	requireInStep(t, d, e, redirect, delta)
	requireReaches(t, "HTTP", app.http("http://shop.mesh.internal:8080/"), "10.77.0.13:9001")
	d.requireAccepted(t)
}

// TestBadInput shows that what is wrong in the folder costs nobody anything.
func TestBadInput(t *testing.T) {
	app, d, e := startMesh(t, redirect, delta)
	clients := app.unchanging()
	clients["shop"] = app.http("http://shop.mesh.internal:8080/")
	l := startLoad(t, clients)
	shop := d.read(t, "shop.yaml")

	t.Run("a bad document", func(t *testing.T) {
		// The second edit is right, but not without the first.
		d.edit(t, "shop.yaml", "protocol: HTTP", "protocol: HTTQ", "10.77.0.13", "10.77.0.14")
		d.awaitProblem(t, "shop.yaml", "HTTQ")
		l.progress(t)
		requireReaches(t, "its earlier version", app.http("http://shop.mesh.internal:8080/"), "10.77.0.13:9001")
		requireInStep(t, d, e, redirect, delta)

		d.edit(t, "shop.yaml", "protocol: HTTQ", "protocol: HTTP")
		awaitReaches(t, "the document mended", app.http("http://shop.mesh.internal:8080/"), "10.77.0.14:9001")
		d.awaitNoProblem(t, "shop.yaml")
		d.write(t, "shop.yaml", shop)
		awaitReaches(t, "the first version", app.http("http://shop.mesh.internal:8080/"), "10.77.0.13:9001")
	})
	t.Run("half a file", func(t *testing.T) {
		// In the middle of a word, which no YAML reader takes for the end.
		d.overwrite(t, "shop.yaml", shop[:strings.Index(shop, "resolution: ST")+len("resolution: ST")])
		d.awaitProblem(t, "shop.yaml")
		l.progress(t)
		d.overwrite(t, "shop.yaml", strings.Replace(shop, "10.77.0.13", "10.77.0.14", 1))
		awaitReaches(t, "the whole file", app.http("http://shop.mesh.internal:8080/"), "10.77.0.14:9001")
		d.awaitNoProblem(t, "shop.yaml")
	})
	t.Run("a file cut to nothing", func(t *testing.T) {
		d.overwrite(t, "shop.yaml", "")
		d.awaitProblem(t, "shop.yaml")
		l.progress(t)
		d.overwrite(t, "shop.yaml", shop)
		awaitReaches(t, "the file again", app.http("http://shop.mesh.internal:8080/"), "10.77.0.13:9001")
		d.awaitNoProblem(t, "shop.yaml")
	})
	t.Run("an entry that Envoy would refuse", func(t *testing.T) {
		d.write(t, "poison.yaml", strings.NewReplacer("name: shop", "name: poison", "shop.mesh", "*poison.mesh", "STATIC", "NONE").Replace(
			shop[:strings.Index(shop, "  endpoints:")]))
		d.awaitProblem(t, "poison.yaml")
		l.progress(t)
		requireInStep(t, d, e, redirect, delta)
		d.remove(t, "poison.yaml")
		d.awaitNoProblem(t, "poison.yaml")
	})
	l.progress(t)
	l.requireNoFailure(t)
	requireInStep(t, d, e, redirect, delta)
	d.requireAccepted(t)
}

// TestRestartIntoTrouble shows that what was served before a restart is served after it, although it is not there to be read.
func TestRestartIntoTrouble(t *testing.T) {
	app, d, e := startMesh(t, redirect, delta)
	clients := app.unchanging()
	clients["shop"] = app.http("http://shop.mesh.internal:8080/").from("10.77.0.13:9001")
	l := startLoad(t, clients)

	// The first daemon does not even see it.
	d.kill()
	d.edit(t, "shop.yaml", "protocol: HTTP", "protocol: HTTQ", "10.77.0.13", "10.77.0.14")
	d.start(t)
	d.awaitProblem(t, "shop.yaml", "HTTQ")
	e.awaitConnected(t, 1)
	l.progress(t)

	d.stop(stopWithin)
	away := filepath.Join(filepath.Dir(d.entries), "away")
	if err := os.Rename(d.entries, away); err != nil {
		t.Fatal(err)
	}
	d.start(t)
	d.awaitProblem(t, d.entries)
	e.awaitConnected(t, 1)
	l.progress(t)
	requireInStep(t, d, e, redirect, delta)
	l.requireNoFailure(t)

	if err := os.Rename(away, d.entries); err != nil {
		t.Fatal(err)
	}
	d.edit(t, "shop.yaml", "protocol: HTTQ", "protocol: HTTP")
	awaitReaches(t, "the folder again, and the document mended", app.http("http://shop.mesh.internal:8080/"), "10.77.0.14:9001")
	d.awaitNoProblem(t, d.entries)
	requireInStep(t, d, e, redirect, delta)
	d.requireAccepted(t)
}

// TestFolderVanishes shows that a folder which goes away, as a mount may, takes nothing with it.
func TestFolderVanishes(t *testing.T) {
	app, d, e := startMesh(t, redirect, delta)
	l := startLoad(t, app.unchanging())
	away := filepath.Join(filepath.Dir(d.entries), "away")
	move := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}

	move(d.entries, away)
	d.awaitProblem(t, d.entries)
	l.progress(t)
	requireInStep(t, d, e, redirect, delta)

	move(away, d.entries)
	d.awaitNoProblem(t, d.entries)
	d.edit(t, "shop.yaml", "10.77.0.13", "10.77.0.14")
	awaitReaches(t, "an edit after the return", app.http("http://shop.mesh.internal:8080/"), "10.77.0.14:9001")

	// The mount point of something that is not mounted is there, and empty.
	move(d.entries, away)
	if err := os.Mkdir(d.entries, 0o755); err != nil {
		t.Fatal(err)
	}
	d.awaitProblem(t, d.entries)
	l.progress(t)
	if err := os.Remove(d.entries); err != nil {
		t.Fatal(err)
	}
	move(away, d.entries)
	d.awaitNoProblem(t, d.entries)

	l.progress(t)
	l.requireNoFailure(t)
	requireInStep(t, d, e, redirect, delta)
	d.requireAccepted(t)
}
