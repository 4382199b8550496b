/* admission.h - scenarios of which room gets blocks: see admission.c. */
#ifndef MMX_SIM_ADMISSION_H
#define MMX_SIM_ADMISSION_H

#include "test/sim/stage.h"

void coupled_restarts(void);
void broken_order(void);
void group_source(void);
void consumed_together(void);
void group_larger(void);
void group_two_encoders(void);
void rows_are_spared(void);
void spare_is_kept(void);
void victim(void);
void open_victim(void);
void two_users_in_groups(void);
void groups_of_three(void);
void crowd_at_limits(void);

#endif
