package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/lockgate/lockgate/internal/config"
)

// runConfig shows the settings.
func (p *program) runConfig(args []string) int {
	opts, err := parseOptions(args, findSpec("config").options)
	if err == nil && len(opts.rest) > 0 {
		err = fmt.Errorf("unexpected argument %q", opts.rest[0])
	}
	if err != nil {
		return p.wrongUsage("config: %v", err)
	}
	settings, wrong := config.Explain(p.environ)
	var code int
	if opts.json() {
		code = p.printJSON(settings)
	} else {
		code = p.print(nil, settingsTable(settings))
	}
	if code == 0 && wrong != nil {
		return p.wrongConfig(wrong) // after what is set, which may tell why
	}
	return code
}

func settingsTable(settings []config.Effective) string {
	var b strings.Builder
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "VARIABLE\tVALUE\tFROM")
	for _, s := range settings {
		value := s.Value
		if value == "" {
			value = "-"
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\n", s.Name, value, s.From)
	}
	_ = table.Flush()
	return b.String()
}
