package bench

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Table writes rows in columns, the first of them as the heading.
func Table(w io.Writer, rows ...[]string) error {
	columns := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for i, row := range rows {
		if _, err := fmt.Fprintln(columns, strings.Join(row, "\t")); err != nil {
			return err
		}
		if i > 0 {
			continue
		}
		var line []string
		for _, head := range row {
			line = append(line, strings.Repeat("-", len(head)))
		}
		if _, err := fmt.Fprintln(columns, strings.Join(line, "\t")); err != nil {
			return err
		}
	}
	return columns.Flush()
}
