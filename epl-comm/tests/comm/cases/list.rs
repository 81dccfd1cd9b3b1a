//! The one list of cases, and the one of worlds.

/// All cases, `file { name [what it needs], … }`, for a macro.
macro_rules! cases {
    ($then:ident) => {
        $then! {
            conformance {
                world_of_one,
                world_of_two,
                world_of_three,
                world_of_four,
                world_of_eight,
                whole_numbers_have_no_mean,
                groups_of_every_second_rank_in_reversed_order,
                groups_of_different_sizes_and_groups_of_groups,
                groups_with_a_name_of_5000_bytes,
                a_traced_group_computes_the_same,
                results_lie_on_the_autodiff_device_of_untracked_inputs,
                #[cfg(feature = "ndarray")]
                another_backend_than_flex,
                half_precision_and_small_integers,
                views_are_sent_as_what_they_show,
                numbers_of_the_host,
            }
            crowded {
                eight_ranks_take_turns_on_few_cores,
            }
            deadlocks {
                in_two_groups_of_the_same_two [Circles],
                at_wait_of_started_calls_behind_others [Circles],
                in_blocking_calls_and_splits_behind_started_ones [Circles],
                in_links_of_one_group [Circles],
                of_three_with_a_fourth_that_waits_for_one_of_them [Circles],
                a_member_that_still_computes_hides_nothing [Circles, SharedMemory],
                a_chain_of_waits_is_no_circle,
                started_calls_in_opposite_orders_are_no_circle,
                a_helper_that_waits_does_not_make_its_rank_wait,
                a_rank_that_has_returned_is_named_by_a_chain_that_ends_in_it,
            }
            failures {
                in_a_blocking_collective,
                in_a_started_collective,
                in_a_barrier_a_split_and_an_exchange_of_counts,
                in_another_group_than_those_who_wait,
                while_started_collectives_are_outstanding,
                while_abandoned_collectives_are_outstanding,
                a_group_that_outlives_its_rank_does_not_hang,
                in_a_backward_pass,
                a_failure_that_every_rank_makes_up_for_is_the_failure_of_the_run,
                an_error_that_panics_does_not_hang_either,
                an_error_may_use_its_group_when_it_is_displayed,
                the_others_are_released_before_an_error_is_converted,
                a_panic_inside_a_collective_is_no_secret_when_its_caller_catches_it [ReadsNumbers],
                a_panic_before_a_collective_leaves_the_world_alone,
            }
            faults {
                every_run_ends_and_names_who_was_at_fault,
                who_stops_is_named [SourceOfWaits],
            }
            in_memory {
                sums_are_taken_in_the_order_of_the_members_bit_by_bit [SumsInOrder],
                a_large_all_reduce_of_unshared_memory_stays_in_place,
                sums_of_large_parts,
            }
            layouts {
                replicated_to_copied,
                replicated_to_split,
                partial_to_replicated,
                partial_to_split,
                split_to_replicated,
                split_to_copied,
                split_to_split_along_another_dim,
                replicated_to_partial,
                split_to_partial,
                to_a_term_of_a_sum,
                a_sum_of_one_term_keeps_the_sign_of_zero,
                rows_to_their_members_and_their_gradients_back,
                a_split_pair_of_layers_equals_the_whole_one,
                a_group_of_one_leaves_no_trace_in_the_graph,
                on_an_inner_device_they_only_move,
                what_does_not_fit_is_said_with_both_numbers,
            }
            memory {
                is_flat_over_many_steps,
            }
            mismatches {
                a_small_buffer_against_large_ones,
                different_operations,
                different_element_types,
                different_shapes,
                rows_that_a_peer_does_not_expect [OneStage],
                exchanges_of_the_same_counts,
                a_split_and_a_gather_of_counts,
                names_of_a_group_to_be,
                long_names_of_a_group_to_be,
                a_mismatch_among_started_calls_comes_out_at_wait_and_ends_the_world,
                arguments_that_fit_nothing,
            }
            pool {
                as_many_are_made_as_are_of_use_and_they_change_nothing,
            }
            random_graphs {
                leaves_that_are_not_sent_have_a_gradient_of_zeros,
                have_the_values_and_gradients_of_one_thread,
            }
            random_programs {
                give_what_the_model_gives,
            }
            started {
                they_run_in_the_order_in_which_they_were_started_and_blocking_ones_after_them,
                they_do_not_hold_up_their_caller,
                two_groups_make_progress_independently,
                a_dropped_pending_frees_nothing_that_a_peer_reads,
                all_handles_may_go_before_the_result_is_taken,
                a_tensor_that_is_still_held_is_not_changed_under_its_holder,
            }
            threads {
                a_group_belongs_to_the_first_thread_that_uses_it,
                all_groups_of_a_rank_belong_to_the_same_thread,
                a_rank_may_be_driven_by_a_thread_that_it_starts,
                every_rank_has_a_pool_of_its_own_with_its_share_of_the_cores,
                nothing_is_left_when_a_run_is_over,
            }
            trace {
                links_of_a_traced_group_are_those_of_the_group,
                collectives_of_all_split_off_groups_and_marks_are_recorded_in_order,
                spans_end_when_they_are_dropped_and_ranks_are_switched_by_themselves,
            }
            views {
                of_all_kinds_in_all_collectives,
            }
        }
    };
}

/// One of the worlds, for a macro: `name "what it is" { what it lacks: "why", … }`.
macro_rules! world {
    (threads, $then:ident $($with:tt)*) => { $then! { $($with)* threads "ranks as threads, in one memory" {} } };
    (hosts, $then:ident $($with:tt)*) => {
        $then! { $($with)* hosts "the same, on hosts of two that reach each other through one rank each" {
            OneStage: "a call goes through several smaller groups, and only those who lead a host know what ranks of another \
                       host have for each other; they learn it before the exchange (`hosts_of.rs` tests what is told then)",
            SumsInOrder: "sums are taken host by host, so their last bits depend on which ranks share one",
            SourceOfWaits: "who has waited too long in one of the smaller groups names who has not come to that one, though it \
                            may itself wait for another in the next",
        } }
    };
    (nccl, $then:ident $($with:tt)*) => {
        $then! { $($with)* nccl "NCCL's stand-in between the threads of one launch" {
            SumsInOrder: "NCCL chooses the order of a sum, and does not say which",
            ReadsNumbers: "it is NCCL that reads them, and it is given a place in memory",
            SourceOfWaits: "who stops after it has started a call keeps the others in NCCL, which does not say for whom they wait",
        } }
    };
    (workers, $then:ident $($with:tt)*) => {
        $then! { $($with)* workers "NCCL's stand-in between processes, each of one rank" {
            SumsInOrder: "NCCL chooses the order of a sum, and does not say which",
            ReadsNumbers: "it is NCCL that reads them, and it is given a place in memory",
            SourceOfWaits: "who stops after it has started a call keeps the others in NCCL, which does not say for whom they wait",
            Circles: "no process knows what the others wait for, and the circle ends with the time limit, which names who has \
                      not come (`nccl/workers.rs` tests that)",
        } }
    };
    (mpi, $then:ident $($with:tt)*) => {
        $then! { $($with)* mpi "processes under mpirun, of one rank or several, on one host or several; the program `mpi`" {
            ReadsNumbers: "what goes to another process is bytes",
            SharedMemory: "ranks of different processes share no variables with which a case could tell them what to do when",
        } }
    };
}

/// A test for each case of the list on a world; none where the world lacks what the case needs. `$d` is a dollar sign.
macro_rules! tests {
    (($d:tt) $(#[$meta:meta])* $world:ident $what:literal { $($lack:ident: $why:literal,)* }) => {
        mod $world {
            macro_rules! one {
                $(($d module:ident $d case:ident [$lack $d($d more:ident)*]) => {};)*
                ($d module:ident $d case:ident [$d other:ident $d($d more:ident)*]) => {
                    one! { $d module $d case [$d($d more)*] }
                };
                ($d module:ident $d case:ident []) => {
                    #[test]
                    $(#[$meta])*
                    fn $d case() {
                        let name = concat!(stringify!($d module), "::", stringify!($d case));
                        crate::cases::world::test(stringify!($world), name);
                    }
                };
            }

            macro_rules! all {
                ($d($d module:ident {
                    $d($d(#[$d cfg:meta])* $d case:ident $d([$d($d need:ident),*])?,)*
                })*) => {
                    $d(mod $d module { $d($d(#[$d cfg])* one! { $d module $d case [$d($d($d need)*)?] })* })*
                };
            }

            cases!(all);
        }
    };
}
