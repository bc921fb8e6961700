package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/meshd/meshd/internal/admin"
	"github.com/meshd/meshd/internal/aggregate"
	"github.com/meshd/meshd/internal/config"
	"github.com/meshd/meshd/internal/consulreg"
	"github.com/meshd/meshd/internal/filereg"
	"github.com/meshd/meshd/internal/mesh"
	"github.com/meshd/meshd/internal/strictyaml"
	"github.com/meshd/meshd/internal/xds"
)

func newServe() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the daemon",
		Long: `serve is the daemon: it reads the entries, serves what they say to the nodes that connect, and passes on every
change. What it finds wrong in the entries is logged and shown by meshd status; what was right before goes on being
served.

Each setting can be given as a flag, in the environment, and in the file, under one name: --log-level,
MESHD_LOG_LEVEL, log-level. A flag wins over the environment, the environment over the file, the file over the
default. What is misspelt is an error.

SIGTERM and SIGINT end it once nodes have been told, a second one at once. SIGHUP makes it read all entries again,
and says what a restart would change of the settings. Under systemd it says when it is ready (Type=notify).

Exit codes: 0 told to stop, 1 failed (a port that is taken, settings that are wrong), 2 wrong flags.`,
		Example: `  meshd serve
  meshd serve --config "" --entries ./entries --state-dir ./state    # an ordinary user's
  MESHD_LOG_FORMAT=json meshd serve --entries /etc/meshd/entries --entries /srv/entries`,
		Args: cobra.NoArgs,
	}
	file := settingsFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		load := func() (*config.Config, error) { return loadSettings(cmd, *file) }
		settings, err := load()
		if err == nil {
			err = serve(cmd.Context(), settings, load, cmd.ErrOrStderr())
		}
		if err != nil {
			return failure{err}
		}
		return nil
	}
	return cmd
}

// serve runs the daemon until ctx ends, a signal says so, or a part of it fails. load gives the settings anew.
func serve(ctx context.Context, settings *config.Config, load func() (*config.Config, error), stderr io.Writer) error {
	log := newLogger(settings, stderr)
	build := thisBuild()

	// The ports come first, so that one that is taken fails the start, as do certificates that cannot be used.
	xdsListener, err := listen("xds-listen", string(settings.XDSListen))
	if err != nil {
		return err
	}
	adminListener, err := listen("admin-listen", string(settings.AdminListen))
	if err != nil {
		return err
	}
	credentials, err := xds.LoadCredentials(log, xds.CertificateFiles{
		Cert: string(settings.XDSTLSCertFile), Key: string(settings.XDSTLSKeyFile), ClientCA: string(settings.XDSTLSClientCAFile),
	})
	if err != nil {
		return fmt.Errorf("TLS of xDS: %w", err)
	}
	log.Info("starting", "version", build.Version, "xds", addressOf(xdsListener), "admin", addressOf(adminListener), "tls", credentials.Mode())

	// Registries know services; the controller makes one view of them all.
	entries, err := absolute(folders(settings)) // what outlives a restart must not depend on where it was started
	if err != nil {
		return err
	}
	var registries []aggregate.Registry
	files := filereg.New(log, filesRegistry, entries, filereg.Options{
		RescanInterval: settings.RescanInterval.Duration, MaxFileBytes: int64(settings.MaxFileSize), StateDir: filepath.Join(string(settings.StateDir), filesRegistry),
	})
	if len(entries) > 0 {
		registries = append(registries, files)
	}
	for _, c := range consulRegistries(settings.Consul, string(settings.StateDir)) {
		registries = append(registries, consulreg.New(log, c.name, c.options))
	}
	controller := aggregate.New(log, registries, aggregate.Options{FirstView: settings.FirstViewTimeout.Duration})

	// The server translates each view for the nodes, and sends them what is new to them.
	server := xds.New(log, xds.Options{
		Settings: meshSettings(settings.OutboundTrafficPolicy), Identifier: "meshd " + build.Version, DrainTime: settings.DrainTime.Duration,
		Canary:     xds.Canary{Nodes: settings.Canary.Nodes, Share: settings.Canary.Share, Time: settings.Canary.Time},
		MaxStreams: int(settings.MaxStreams), MaxRequestRate: int(settings.MaxRequestRate),
		MaxConnectionAge: settings.MaxConnectionAge.Duration, LoadReportInterval: settings.LoadReportInterval.Duration,
		Credentials: credentials,
	})
	controller.Handle(func(_ aggregate.Change, v *mesh.View) { server.Apply(v) })

	// What is served is shown, and the service manager told.
	pages := admin.New(log, admin.Options{
		Version: build.Version, Commit: build.Commit, XDS: xdsListener.Addr(),
		Registries: controller.Registries, Release: controller.Release, History: controller.History,
		Nodes: server.Nodes, NodeProblems: server.Problems, Stats: server.Stats, Canary: server.Canary, Loads: server.Loads, Sights: server.Sights, Near: strictyaml.Suggest,
		Resources: func(node string) (admin.Resources, error) {
			return nodeResources(server, settings.OutboundTrafficPolicy, node)
		},
	})
	controller.Handle(pages.Apply)
	controller.Handle(func(c aggregate.Change, v *mesh.View) { announce(log, c, v) })

	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return controller.Run(ctx) })
	group.Go(func() error { return server.Run(ctx, xdsListener) })
	if adminListener != nil {
		group.Go(func() error { return pages.Run(ctx, adminListener) })
	}
	group.Go(func() error {
		late, waited := time.After(settings.FirstViewTimeout.Duration), false
		for {
			select {
			case <-ctx.Done():
				stop() // from now on a signal ends the process at once
				log.Info("stopping")
				tell(log, "STOPPING=1")
				return nil
			case <-late: // the service manager does not wait for ever, and a registry may
				waited = true
				if controller.Current() == nil {
					log.Warn("nothing is served yet", "registries", waiting(controller.Registries()))
					tell(log, "READY=1", "STATUS=nothing is served yet: "+waiting(controller.Registries()))
				}
			case <-hangups:
				log.Info("reloading")
				tell(log, "RELOADING=1")
				review(log, settings, load)
				files.Reload()
				if waited || controller.Current() != nil {
					tell(log, "READY=1")
				}
			}
		}
	})
	return group.Wait()
}

func absolute(paths []string) ([]string, error) {
	out := make([]string, len(paths))
	for i, p := range paths {
		abs, err := filepath.Abs(p)
		if err != nil {
			return nil, fmt.Errorf("entries %s: %w", p, err)
		}
		out[i] = abs
	}
	return out, nil
}

// waiting says which registries there are no services from yet, and why.
func waiting(registries []aggregate.RegistryStatus) string {
	var why []string
	for _, r := range registries {
		if !r.Synced {
			why = append(why, r.Name+": "+cmp.Or(r.Reason, "has not said anything"))
		}
	}
	return strings.Join(why, ", ")
}

// listen opens the listener of a setting, and none where it is off.
func listen(setting, address string) (net.Listener, error) {
	if address == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; stop what listens there, or choose another address with --%s", setting, err, setting)
	}
	return l, nil
}

func addressOf(l net.Listener) string {
	if l == nil {
		return "off"
	}
	return l.Addr().String()
}

// announce logs a new view and tells the service manager that it is served. Endpoints come and go too often to be news.
func announce(log hclog.Logger, c aggregate.Change, v *mesh.View) {
	level := hclog.Info
	if c.EndpointsOnly {
		level = hclog.Debug
	}
	log.Log(level, "serving", "generation", v.Generation, "digest", v.Digest, "services", v.Services.Len(),
		"added", len(c.Added), "altered", len(c.Altered), "removed", len(c.Removed), "registries", c.Registries)
	tell(log, "READY=1", fmt.Sprintf("STATUS=generation %d: %d services, %d problems", v.Generation, v.Services.Len(), len(v.Problems)))
}
