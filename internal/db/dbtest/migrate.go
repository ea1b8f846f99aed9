package dbtest

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/lockgate/lockgate/internal/db"
)

// migrate asks for the table from a client.
func (b *bench) migrate(store db.Store) (created bool, err error) {
	b.Helper()
	migrator, ok := store.(db.Migrator)
	if !ok {
		b.Fatalf("%T is not a db.Migrator any more", store)
	}
	err = b.again(func() error {
		created, err = migrator.Migrate(b.ctx)
		return err
	})
	return created, err
}

func (b *bench) wantMigrated(store db.Store, created bool) {
	b.Helper()
	if got, err := b.migrate(store); got != created || err != nil {
		b.Fatalf("Migrate() = %t, %v; want %t, nil", got, err, created)
	}
}

func migrateCases() []testCase {
	return []testCase{
		{"migrate creates the table, once", func(b *bench) {
			open := b.h.Empty(b.T)
			first, second := b.closed(open()), b.closed(open())
			b.wantMigrated(first, true)
			b.wantMigrated(first, false)
			b.wantMigrated(second, false)
			for i, store := range []db.Store{first, second} {
				if _, err := b.try(store, b.ask("job", "a")); err != nil {
					b.Errorf("TryAcquire by client %d = %v; want a lease", i, err)
				}
			}
		}},
		{"migrate leaves the locks of a table that is there", func(b *bench) {
			store := b.closed(b.h.Empty(b.T)())
			lease, err := b.try(store, b.ask("job", "a")) // creates it
			if err != nil {
				b.Fatalf("TryAcquire without a table = %v; want a lease", err)
			}
			b.wantMigrated(store, false)
			if _, err := store.Renew(b.ctx, lease); err != nil {
				b.Errorf("Renew after Migrate = %v; want a lease", err)
			}
		}},
		{"one of many that migrate at the same time has created the table", func(b *bench) {
			open := b.h.Empty(b.T)
			var wg sync.WaitGroup
			created := make([]bool, contenders)
			for i := range created {
				store := b.closed(open())
				wg.Go(func() {
					var err error
					if created[i], err = b.migrate(store); err != nil {
						b.Errorf("Migrate() by client %d = %v; want nil", i, err)
					}
				})
			}
			wg.Wait()
			n := 0
			for _, c := range created {
				if c {
					n++
				}
			}
			if n != 1 {
				b.Errorf("%d of %d have created the table; want 1", n, contenders)
			}
		}},
		{"only acquiring and migrating create, and all others say how it is created", func(b *bench) {
			store := b.closed(b.h.Empty(b.T)())
			req := b.ask("job", "a")
			lease := undo(req)
			lease.Token = 1
			admin := store.(db.Admin)
			_, renewErr := store.Renew(b.ctx, lease)
			_, listErr := admin.List(b.ctx)
			for range 2 { // none of them has made it for the other
				for call, err := range map[string]error{
					"Renew": renewErr, "Release": store.Release(b.ctx, lease, 0), "Revoke": admin.Revoke(b.ctx, "job", 1, true), "List": listErr,
				} {
					if !errors.Is(err, db.ErrNoTable) || decisions(err) != 1 || !strings.Contains(err.Error(), "CREATE TABLE") {
						b.Errorf("%s without a table = %v; want ErrNoTable and how it is created", call, err)
					}
				}
				_, listErr = admin.List(b.ctx)
			}
			b.wantMigrated(store, true)
			if rows, err := admin.List(b.ctx); err != nil || len(rows) != 0 {
				b.Errorf("List() of a new table = %+v, %v; want no rows", rows, err)
			}
		}},
		{"another's table is refused by every call, and stays as it is", func(b *bench) {
			open, dump := b.h.Foreign(b.T)
			before := dump()
			store := b.closed(open())
			req := b.ask("job", "a")
			lease := undo(req)
			lease.Token = 1
			admin := store.(db.Admin)
			_, acquireErr := store.TryAcquire(b.ctx, req)
			_, renewErr := store.Renew(b.ctx, lease)
			_, listErr := admin.List(b.ctx)
			_, migrateErr := b.migrate(store)
			for call, err := range map[string]error{
				"TryAcquire": acquireErr, "Renew": renewErr, "Release": store.Release(b.ctx, lease, 0),
				"Revoke": admin.Revoke(b.ctx, "job", 1, true), "List": listErr, "Migrate": migrateErr,
			} {
				if !errors.Is(err, db.ErrRefused) || decisions(err) != 1 {
					b.Errorf("%s on another's table = %v; want ErrRefused", call, err)
					continue
				}
				for _, want := range []string{"is not a lockgate table", "owner", "LOCKGATE_DB_TABLE"} {
					if !strings.Contains(err.Error(), want) {
						b.Errorf("%s on another's table = %q; want it to say %q", call, err, want)
					}
				}
			}
			if after := dump(); after != before {
				b.Errorf("another's table was\n%s\nand is\n%s", before, after)
			}
		}},
		{"a context that has ended already is an error without a decision", func(b *bench) {
			ctx, cancel := context.WithCancel(b.ctx)
			cancel()
			store := b.closed(b.h.Empty(b.T)())
			migrator := store.(db.Migrator)
			if created, err := migrator.Migrate(ctx); created || err == nil || decisions(err) != 0 {
				b.Errorf("Migrate with a cancelled context = %t, %v; want an error that decides nothing", created, err)
			}
			b.wantMigrated(store, true)
		}},
	}
}
