/* admission.h - scenarios of who gets blocks: see admission.c. */
#ifndef MMX_SIM_ADMISSION_H
#define MMX_SIM_ADMISSION_H

#include "test/sim/stage.h"

void coupled_calm(void);
void coupled_breaks(void);
void coupled_restarts(void);
void broken_order(void);
void group_source(void);
void consumed_together(void);
void group_larger(void);
void group_two_encoders(void);
void rows_are_spared(void);
void spare_is_kept(void);
void victim(void);
void victim_at_work(void);
void victim_unheard(void);
void victim_in_time(void);
void victim_kept(void);
void full_by_one_room(void);
void full_by_one_item(void);
void victim_of_two(void);
void open_victim(void);
void victims_in_a_batch(void);
void overload_drains(void);
void users_take_turns(void);
void two_users_in_groups(void);
void groups_of_three(void);
void crowd_at_limits(void);

#endif
