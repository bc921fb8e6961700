package main

import (
	"github.com/spf13/cobra"

	"github.com/meshd/meshd/internal/filereg"
)

func newSchema() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print a JSON Schema of entry files",
		Long: `schema prints a JSON Schema (draft 7) of ServiceEntry and WorkloadEntry documents. Editors that know YAML complete
and explain fields with it and mark mistakes while they are made: VS Code with the YAML extension, and all that use
yaml-language-server (Vim, Neovim, Emacs, Helix, Zed). IntelliJ takes it under "JSON Schema mappings".

A comment in a document names the schema for it, by a path from the file or a URL:

  # yaml-language-server: $schema=schema.json

A schema cannot tell everything; meshd check can.`,
		Example: `  meshd schema > schema.json`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(filereg.Schema())
			return err
		},
	}
}
